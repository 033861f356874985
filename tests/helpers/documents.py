"""Small real files: HTML, PDF, DOCX, notebooks."""

from __future__ import annotations

import io
import json
import zipfile
from xml.sax.saxutils import escape


def html(title: str, heading: str, text: str) -> bytes:
    return (
        f"<!doctype html><html><head><title>{escape(title)}</title><style>p {{}}</style></head>"
        f"<body><h2>{escape(heading)}</h2><script>ignore()</script><p>{escape(text)}</p>"
        "<ul><li>one</li><li><a href='x'>two</a></li></ul></body></html>"
    ).encode()


def notebook(text: str, code: str) -> bytes:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": [f"# {text}\n", "\n", "Body."]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": code},
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def docx(heading: str, text: str) -> bytes:
    space = "http://schemas.openxmlformats.org"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{space}/package/2006/content-types">'
        '<Default Extension="rels"'
        ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
        'officedocument.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{space}/package/2006/relationships"><Relationship'
        f' Id="r1" Type="{space}/officeDocument/2006/relationships/officeDocument"'
        ' Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{space}/wordprocessingml/2006/main"><w:body>'
        '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
        f"<w:r><w:t>{escape(heading)}</w:t></w:r></w:p>"
        f"<w:p><w:r><w:t>{escape(text)}</w:t></w:r></w:p></w:body></w:document>",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in files.items():
            package.writestr(name, '<?xml version="1.0" encoding="UTF-8"?>' + content)
    return file.getvalue()


def pdf(title: str, text: str) -> bytes:
    """A PDF of one page; ``text`` is ASCII without parentheses."""
    drawing = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>".encode(),
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\n"
        b"startxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table, len(objects) + 1, len(out))
    )
