"""How well-known models want to be used: pooling, prompts, padding and lengths, as data.

None of these models has been run with its real weights by strop's tests, which have no access
to them; the tests run every preset on small random models of the same architecture and compare
with a literal computation. The facts were read at the addresses in ``source``.

strop makes unit vectors of all of them. The authors of Contriever score with the dot product of
raw vectors; cosine is what the sharpening formula is defined on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "cls", "lasttoken", "max", "weightedmean"]

_WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Preset:
    """A model and the way to use it. "{task}" in a prompt is replaced by the task's wording."""

    name: str
    model: str
    """Its id on the model hub; the option ``path`` puts a local folder in its place."""
    pooling: Pooling
    max_length: int
    """Tokens, with prompt and special tokens; what is longer is cut at the end."""
    source: str
    query_prompt: str = ""
    document_prompt: str = ""
    task: str = _WEB_SEARCH
    pool_prompt: bool = True
    """False leaves the tokens of the prompt out of the pooling."""
    padding_side: Literal["left", "right"] = "right"
    end_token: str = ""
    """Put after each text, unless the tokenizer does so by itself."""
    bidirectional: bool = False
    """True for decoder models trained to look both ways."""
    dtype: str = "float32"
    note: str = ""


_CONTRIEVER = "https://github.com/facebookresearch/contriever"
_INSTRUCT = "Instruct: {task}\nQuery: "
_GRIT_QUERY = "<|user|>\n{task}\n<|embed|>\n"
_GRIT_DOCUMENT = "<|embed|>\n"
_NO_REMOTE_CODE = (
    "Its authors load it with code from the model's own folder, which makes the attention look "
    "both ways. strop sets the same in transformers' own code (version 5 or later) and runs no "
    "code from the folder."
)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("contriever", "facebook/contriever", "mean", 512, _CONTRIEVER),
        Preset("contriever-msmarco", "facebook/contriever-msmarco", "mean", 512, _CONTRIEVER),
        Preset("mcontriever", "facebook/mcontriever", "mean", 512, _CONTRIEVER),
        Preset("mcontriever-msmarco", "facebook/mcontriever-msmarco", "mean", 512, _CONTRIEVER),
        Preset(
            "multilingual-e5-large-instruct",
            "intfloat/multilingual-e5-large-instruct",
            "mean",
            512,
            "https://huggingface.co/intfloat/multilingual-e5-large-instruct",
            query_prompt=_INSTRUCT,
        ),
        Preset(
            "e5-mistral",
            "intfloat/e5-mistral-7b-instruct",
            "lasttoken",
            4096,
            "https://huggingface.co/intfloat/e5-mistral-7b-instruct",
            query_prompt=_INSTRUCT,
            end_token="</s>",
            dtype="auto",
            note="The vector is that of the end token, which transformers 5 no longer adds by "
            "itself (see e5_instruct.py in embeddings-benchmark/mteb); the preset adds it.",
        ),
        Preset(
            "qwen3-embedding-0.6b",
            "Qwen/Qwen3-Embedding-0.6B",
            "lasttoken",
            8192,
            "https://huggingface.co/Qwen/Qwen3-Embedding-0.6B",
            query_prompt="Instruct: {task}\nQuery:",
            padding_side="left",
            end_token="<|endoftext|>",
            dtype="auto",
            note="The model takes 32,768 tokens; 8,192 is what its card and its authors' "
            "evaluation use. No space follows 'Query:'.",
        ),
        Preset(
            "gritlm-7b",
            "GritLM/GritLM-7B",
            "mean",
            512,
            "https://github.com/ContextualAI/gritlm",
            query_prompt=_GRIT_QUERY,
            document_prompt=_GRIT_DOCUMENT,
            pool_prompt=False,
            bidirectional=True,
            dtype="auto",
            note=f"512 tokens is its encoder's default; it takes 32,768. {_NO_REMOTE_CODE}",
        ),
        Preset(
            "reasonir-8b",
            "reasonir/ReasonIR-8B",
            "mean",
            8192,
            "https://github.com/facebookresearch/ReasonIR",
            query_prompt=_GRIT_QUERY,
            document_prompt=_GRIT_DOCUMENT,
            pool_prompt=False,
            bidirectional=True,
            dtype="auto",
            note="Its authors evaluate with 32,768 tokens on BRIGHT; 8,192 fits smaller cards. "
            f"For non-commercial use only. {_NO_REMOTE_CODE}",
        ),
    )
}

_BRIGHT_POSTS = (
    "Biology",
    "Earth Science",
    "Economics",
    "Psychology",
    "Robotics",
    "Stackoverflow",
    "Sustainable Living",
)
_MATH = "Given a Math problem, retrieve relevant {} that help answer the problem"

TASKS: dict[str, str] = {
    # As in evaluation/eval_mteb.py of ContextualAI/gritlm, which follows E5.
    "arguana": "Given a claim, find documents that refute the claim",
    "fiqa": "Given a financial question, retrieve user replies that best answer the question",
    "nfcorpus": "Given a question, retrieve relevant documents that best answer the question",
    "scidocs": "Given a scientific paper title, retrieve paper abstracts that are cited by the "
    "given paper",
    "scifact": "Given a scientific claim, retrieve documents that support or refute the claim",
    "trec-covid": "Given a query on COVID-19, retrieve documents that answer the query",
    # The same authors' wording for questions over Wikipedia, which MIRACL consists of.
    "miracl": "Given a question, retrieve Wikipedia passages that answer the question",
    # As in evaluation/bright/configs/reasonir of facebookresearch/ReasonIR, with the names of
    # domains spelled as in reasonir_model.py of embeddings-benchmark/mteb.
    **{
        f"bright-{domain.lower().replace(' ', '-')}": f"Given a {domain} post, retrieve relevant "
        "passages that help answer the post"
        for domain in _BRIGHT_POSTS
    },
    "bright-pony": "Given a Pony question, retrieve relevant passages that help answer the "
    "question",
    "bright-leetcode": "Given a coding problem, retrieve relevant examples that help answer the "
    "problem",
    "bright-aops": _MATH.format("examples"),
    "bright-theoremqa-questions": _MATH.format("examples"),
    "bright-theoremqa-theorems": _MATH.format("theorems"),
}
"""Wordings of ``task`` by dataset: ``load("e5-mistral", task="scifact")``."""
