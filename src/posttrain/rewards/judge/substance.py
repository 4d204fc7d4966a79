"""Answers that cannot be good ones, whatever a judge would say of them: nobody is asked.

Judges give full marks to a colon, to "Thought process:", to "Solution" in several languages, and a policy that is
trained by one soon says nothing else (arXiv:2507.08794).
"""

from __future__ import annotations

import re
import unicodedata

_ENGLISH = """
final answer; final solution; here is my answer; here is my solution; here is the answer; here is the solution;
let me think; let me think step by step; let's begin; let's solve this; let's solve this problem;
let's solve this problem step by step; let's solve this step by step; let's think about this step by step;
let's think step by step; let us solve this problem step by step; let us think step by step; my solution;
reasoning process; solution; solution process; step by step solution; the answer is; the final answer is;
the solution; the solution is; thinking process; thought process
"""
_OTHERS = """
gedankengang; lösung; lösen wir dieses problem schritt für schritt; solution détaillée; processus de réflexion;
résolvons ce problème étape par étape; respuesta; solución; proceso de pensamiento;
resolvamos este problema paso a paso; vamos a resolver este problema paso a paso; solução;
processo de pensamento; vamos resolver este problema passo a passo; soluzione; processo di pensiero; решение;
ход мыслей; ход решения; давайте решим эту задачу шаг за шагом; الحل; عملية التفكير; समाधान; हल; 解; 解答;
解析; 思考过程; 思考過程; 解题过程; 解題過程; 让我们一步一步地解决这个问题; 让我们逐步解决这个问题;
讓我們一步一步地解決這個問題; かいせつ; 解説; 思考プロセス; この問題をステップごとに解いてみましょう;
段階的に解いてみましょう; 풀이; 해답; 해설; 사고 과정; 이 문제를 단계별로 풀어봅시다
"""
KEYS = frozenset(" ".join(key.split()) for key in f"{_ENGLISH};{_OTHERS}".split(";"))
"""Openers after which an answer would have to follow, without case and punctuation."""

_LABELS = """
answer explanation reasoning thought thoughts antwort réponse resposta risposta ответ الجواب उत्तर 答案 答 回答 답 정답
"""
LABELS = frozenset(_LABELS.split())
"""Words that may be an answer by themselves, and are none before a colon."""

_PIECES = re.compile(r"([^\n:.。!?;…|]*)([\n:.。!?;…|]*)")


def says_nothing(text: str) -> str:
    """Why an answer cannot be a good one; "" for all others.

    >>> says_nothing(" \\n"), says_nothing(":"), says_nothing("**Thought process:**\\nSolution"), says_nothing("7")
    ('empty', 'no letter and no digit', 'openers without an answer', '')
    """
    text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf").strip()
    if not text:
        return "empty"
    if not any(map(str.isalnum, text)):
        return "no letter and no digit"
    pieces = [(_bare(piece), end) for piece, end in _PIECES.findall(text)]
    opens = all(not piece or piece in KEYS or (piece in LABELS and ":" in end) for piece, end in pieces)
    return "openers without an answer" if opens else ""


def _bare(piece: str) -> str:
    """Without case, without signs at its ends, with one kind of apostrophe and of space."""
    kept = re.sub(r"^[\W_]+|[\W_]+$", "", piece.replace("’", "'").casefold())
    return " ".join(kept.replace("-", " ").split())
