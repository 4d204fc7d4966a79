"""Small chat templates of all usual kinds, and the text that each writes: u:hello<eos>a:hi<eos>."""

PROMPT = "{% if add_generation_prompt %}a:{% endif %}"
NO_PROMPT = "{{ bos_token }}{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}"
APPENDS = NO_PROMPT + PROMPT
TRIMS = APPENDS.replace("m['content']", "m['content'] | trim")
TAKES_REASONING_OUT = """\
{{ bos_token }}{% set last = namespace(question=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{{ m.role[0] }}:
{%- if m.role == 'assistant' and '</think>' in m.content %}
{%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set why = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- if loop.index0 > last.question %}{{ '<think>\\n' + why + '\\n</think>\\n\\n' }}{% endif %}{{ said }}
{%- else %}{% if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{{ m.content }}
{%- endif %}{{ eos_token }}{% endfor %}
{%- if add_generation_prompt %}a:
{%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
"""Only reasoning after the last question is kept, as in Qwen3; an answer without reasoning gets an empty one at the
end."""
COUNTS = "{{ messages | length }} turns. " + APPENDS
"""The text at the start changes with every turn."""
TAGS = (
    "{{ messages | length }} turns. {% for m in messages %}{{ m['role'][0] }}:{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'][::-1] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ eos_token }}"
    "{% endfor %}" + PROMPT
)
"""The template writes answers backwards and marks them itself, but not their EOS."""
FORGETS = APPENDS.replace("m['content']", "m['content'] if loop.last else '...'")
"""Earlier answers are missing, so the tokens to train cannot be found."""
NO_EOS = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}" + PROMPT
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}" + APPENDS
)
CALLS = (
    "{{ bos_token }}{% if tools %}tools:{% for t in tools %}{{ t.function.name }}{% endfor %}{{ eos_token }}{% endif %}"
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{{ eos_token }}{% endfor %}" + PROMPT
)
"""Writes tools and calls."""
