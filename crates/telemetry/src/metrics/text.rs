//! Lines of the page.

use std::fmt::Write as _;

pub(super) fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

pub(super) fn single(out: &mut String, name: &str, kind: &str, help: &str, number: impl std::fmt::Display) {
    header(out, name, kind, help);
    out.push_str(name);
    value(out, number);
}

pub(super) fn labelled(out: &mut String, name: &str, label: &str, text: &str, number: impl std::fmt::Display) {
    let _ = write!(out, "{name}{{{label}=\"{text}\"}}");
    value(out, number);
}

/// Appends a value with several labels, whose texts need no escaping.
pub(super) fn labelled_by(out: &mut String, name: &str, labels: &[(&str, &str)], number: impl std::fmt::Display) {
    out.push_str(name);
    for (at, (label, text)) in labels.iter().enumerate() {
        let _ = write!(out, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
    }
    out.push('}');
    value(out, number);
}

pub(super) fn value(out: &mut String, number: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, " {number}");
}

/// Appends a label value in quotes: backslash, quote and line feed are escaped, other characters are copied.
pub(super) fn quoted(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut special = special.chars();
        match special.next() {
            Some('\n') => out.push_str("\\n"),
            Some(other) => out.extend(['\\', other]),
            None => {}
        }
        rest = special.as_str();
    }
    out.push_str(rest);
    out.push('"');
}
