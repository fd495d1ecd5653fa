"""Turns preprocessed CUDA into C++ for the emulator: inline PTX becomes calls of its interpreter,
shared variables become references into the shared memory of the running thread block.

    rewrite.py < preprocessed.ii > kernel.cpp
"""

import re
import sys

ASM = re.compile(r'\basm\b\s*(?:volatile\b)?\s*\(')
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def closing(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one before `start`."""
    depth, i = 1, start
    while True:
        c = text[i]
        if c == '"':
            i = STRING.match(text, i).end()
            continue
        depth += (c == '(') - (c == ')')
        if depth == 0:
            return i
        i += 1


def sections(body: str) -> list[str]:
    """Template, outputs, inputs, clobbers: split at the colons outside of parentheses."""
    parts, depth, last, i = [], 0, 0, 0
    while i < len(body):
        c = body[i]
        if c == '"':
            i = STRING.match(body, i).end()
            continue
        depth += (c == '(') - (c == ')')
        if c == ':' and depth == 0:
            parts.append(body[last:i])
            last = i + 1
        i += 1
    return parts + [body[last:]]


def operands(section: str) -> list[tuple[str, str]]:
    """("+f", "x"), ... out of "+f"(x), ..."""
    found, i = [], 0
    while True:
        constraint = STRING.search(section, i)
        if not constraint:
            return found
        start = section.index('(', constraint.end()) + 1
        i = closing(section, start)
        found.append((constraint.group()[1:-1], section[start:i]))


def call(body: str) -> str:
    parts = [part for part in sections(body)]
    template = parts[0].strip()
    values = []
    for constraint, expression in operands(parts[1]) if len(parts) > 1 else []:
        how = 'update' if constraint[0] == '+' else 'output'
        values.append(f'emulator::{how}({expression})')
    for _, expression in operands(parts[2]) if len(parts) > 2 else []:
        values.append(f'emulator::input({expression})')
    values.append('{}')  # an array of none is not C++
    return ('do { static const emulator::Code code_(' + template + '); emulator::Operand operands_[] = {'
            + ', '.join(values) + '}; code_.run(operands_); } while (0)')


def main() -> None:
    text = sys.stdin.read()
    out, at = [], 0
    for match in ASM.finditer(text):
        if match.start() < at:
            continue
        end = closing(text, match.end())
        body = text[match.end():end]
        if '%' not in body and ':' not in body and ';' not in body:
            continue  # a name for the linker
        lines = body.count('\n')
        out += [text[at:match.start()], call(' '.join(body.split('\n'))), '\n' * lines]
        at = end + 1
    text = ''.join(out) + text[at:]
    text = re.sub(r'\bextern\s+__shared__\s+(?:alignas\((\d+)\)\s*)?([\w:\s]+?)\s*(\w+)\[\];',
                  r'auto* const \3 = emulator::dynamic_shared<\2, \1>();', text)
    text = re.sub(r'\b__shared__\s+([\w:]+(?:\s[\w:]+)*)\s+(\w+)((?:\s*\[[^;\]]*\])*);',
                  r'auto& \2 = emulator::static_shared<\1\3>([] {});', text)
    text = re.sub(r'\b(\w+)<<<(.*?)>>>\(', r'emulator::start(\1, \2)(', text, flags=re.S)
    text = text.replace('reinterpret_cast<const void*>(', 'emulator::opaque(')
    sys.stdout.write(text)


if __name__ == '__main__':
    main()
