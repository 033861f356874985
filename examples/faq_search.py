"""FAQ search: answers are found by the questions that people ask, not only by their own words.

    python examples/faq_search.py

Each answer is a document. The questions that led to it so far are its query set: the vector of an
answer moves towards the question that is most like the new one.
"""

from __future__ import annotations

import tempfile

from strop import Index

FAQ = {  # answer: the questions it has been given to
    "Open Settings, Security, and choose Reset. We mail you a link that is valid for an hour.": [
        "I forgot my password", "I am locked out of my account"],
    "Open Settings, Security, and choose Sessions. End each session that you do not know.": [
        "somebody else uses my account", "log out on all my devices"],
    "Invoices are mailed on the first day of a month. Older ones are in Settings, Billing.": [
        "where is my receipt", "I need a document for the tax office"],
    "Open Settings, Billing, and choose Cancel. You can use what you paid for until its end.": [
        "how do I stop my subscription", "no more bills next month please"],
    "A refund is possible within 30 days of a payment. Write to us with the invoice number.": [
        "I want my money back", "charged twice for the same month"],
    "Files above 2 GB must be uploaded with the desktop program, which can resume.": [
        "my video does not upload", "transfer stops at 99 percent"],
    "Deleted files stay in the bin for 60 days. After that nobody can restore them.": [
        "I removed a folder by mistake", "get back an old version"],
}  # fmt: skip
NEW = [
    "I can't get into my account",
    "why was my card charged two times?",
    "please do not bill me again",
    "undo an accidental delete",
    "upload hangs near the end",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/faq.index") as index:
        answers = {f"answer {at}": answer for at, answer in enumerate(FAQ, 1)}
        index.add({"id": id_, "text": text} for id_, text in answers.items())
        index.import_queries({id_: FAQ[text] for id_, text in answers.items()}, "questions")
        for question in NEW:
            plain = index.search(question, k=1, method="trad")[0][0]
            hit = index.search(question, k=1)[0][0]
            print(f"? {question}")
            print(f"  {hit.text}")
            if hit.passage and hit.passage.source != "text":
                print(f"  because somebody asked: {hit.passage.text}")
            if plain.id != hit.id:
                print(f"  plain search would say: {plain.text}")
            print()


if __name__ == "__main__":
    main()
