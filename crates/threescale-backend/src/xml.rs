//! XML of answers.

use crate::fault::Fault;

/// The head of a document.
pub(crate) const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

/// Appends a text as content of an element. Control characters that XML does not know become `?`.
pub(crate) fn push(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\t' | '\n' | '\r' => out.push(c),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => out.push('?'),
            c => out.push(c),
        }
    }
}

/// Appends an attribute with a blank before it.
pub(crate) fn push_attribute(out: &mut String, name: &str, value: &str) {
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    for (place, part) in value.split('"').enumerate() {
        if place > 0 {
            out.push_str("&quot;");
        }
        push(out, part);
    }
    out.push('"');
}

/// Appends an element with a text.
pub(crate) fn push_element(out: &mut String, name: &str, text: &str) {
    out.push_str(&format!("<{name}>"));
    push(out, text);
    out.push_str(&format!("</{name}>"));
}

/// The document of an error.
pub(crate) fn error(fault: &Fault) -> String {
    let mut out = format!("{HEAD}<error code=\"{}\">", fault.code());
    push(&mut out, &fault.to_string());
    out.push_str("</error>");
    out
}

#[cfg(test)]
mod tests {
    use super::{Fault, error, push_attribute};

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            error(&Fault::MetricInvalid("<a b='&'>\u{1}".to_owned())),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><error code=\"metric_invalid\">\
             metric \"&lt;a b='&amp;'&gt;?\" is invalid</error>"
        );
        let mut out = String::new();
        push_attribute(&mut out, "id", "a\"<b");
        assert_eq!(out, " id=\"a&quot;&lt;b\"");
    }
}
