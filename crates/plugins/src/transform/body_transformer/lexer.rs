//! Templates as tokens: text, the marks of what is printed, and words of Lua between `{%` and `%}`, `{{` and `}}`, `{*` and
//! `*}`. Blanks around marks are treated as lua-resty-template treats them.

use super::value::parse_number;

/// A token of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text that goes through as it is.
    Verbatim(Vec<u8>),
    /// The beginning and the end of what is printed; `true` where it is escaped.
    Print(bool),
    EndOfPrint,
    /// The end of a `{% %}`.
    EndOfCode,
    Name(String),
    Number(f64),
    Text(Vec<u8>),
    /// An operator or a bracket.
    Sign(&'static str),
}

/// Signs, longer ones first.
const SIGNS: [&str; 28] = [
    "...", "..", "==", "~=", "<=", ">=", "::", "(", ")", "[", "]", "{", "}", "+", "-", "*", "/", "%", "^", "#", "<",
    ">", "=", ",", ".", ":", ";", "!",
];

/// Reads a template.
///
/// # Errors
/// A mark is not closed, or a word is none.
pub(super) fn tokens(template: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut text = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        let mark = from.as_bytes().get(1).copied();
        let close = match mark {
            Some(b'{') => "}}",
            Some(b'*') => "*}",
            Some(b'%') => "%}",
            Some(b'#') => "#}",
            Some(b'(') => ")}",
            Some(b'[') => "]}",
            Some(b'-') => "-}",
            _ => {
                text.extend_from_slice(before.as_bytes());
                text.push(b'{');
                rest = &from[1..];
                continue;
            }
        };
        // Without its end a mark is text.
        let Some(end) = from.get(2..).and_then(|inner| inner.find(close)) else {
            text.extend_from_slice(before.as_bytes());
            text.push(b'{');
            rest = &from[1..];
            continue;
        };
        let (inner, behind) = (&from[2..2 + end], &from[2 + end + 2..]);
        // `\{{` is `{{`, and `\\{{` a backslash before a mark.
        match before.strip_suffix('\\') {
            Some(kept) if !kept.ends_with('\\') => {
                text.extend_from_slice(kept.as_bytes());
                text.push(b'{');
                rest = &from[1..];
                continue;
            }
            Some(kept) => text.extend_from_slice(kept.as_bytes()),
            None => text.extend_from_slice(before.as_bytes()),
        }
        rest = match mark {
            Some(b'%') => {
                // Blanks before, and one line end after, belong to the mark.
                let kept = text.iter().rposition(|b| !matches!(b, b' ' | b'\t' | 0x0b | 0)).map_or(0, |at| at + 1);
                text.truncate(kept);
                flush(&mut text, &mut out);
                words(inner, &mut out)?;
                out.push(Token::EndOfCode);
                behind.strip_prefix('\n').unwrap_or(behind)
            }
            Some(b'#') => behind.strip_prefix('\n').unwrap_or(behind),
            Some(b'-') if matches!(inner.trim(), "raw" | "verbatim") => {
                let whole = &from[..2 + end + 2];
                let Some(until) = behind.find(whole) else {
                    return Err(format!("{whole} is not closed by another one"));
                };
                text.extend_from_slice(&behind.as_bytes()[..until]);
                let after = &behind[until + whole.len()..];
                after.strip_prefix('\n').unwrap_or(after)
            }
            Some(b'(' | b'[' | b'-') => {
                // JSON has brackets within braces, such as {"a":1} never, but {[1]} and {(x)} in text do occur.
                return Err(format!(
                    "{:?} is not supported: templates in files and blocks cannot be read here",
                    &from[..2 + end + 2]
                ));
            }
            _ => {
                flush(&mut text, &mut out);
                out.push(Token::Print(mark == Some(b'{')));
                words(inner, &mut out)?;
                out.push(Token::EndOfPrint);
                behind
            }
        };
    }
    text.extend_from_slice(rest.as_bytes());
    flush(&mut text, &mut out);
    Ok(out)
}

fn flush(text: &mut Vec<u8>, out: &mut Vec<Token>) {
    if !text.is_empty() {
        out.push(Token::Verbatim(std::mem::take(text)));
    }
}

/// Words of Lua.
fn words(code: &str, out: &mut Vec<Token>) -> Result<(), String> {
    let mut rest = code.trim_start();
    while let Some(first) = rest.bytes().next() {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            continue;
        }
        let length = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let length = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
                out.push(Token::Name(rest[..length].to_owned()));
                length
            }
            b'0'..=b'9' => {
                let length = number_length(rest);
                let number = parse_number(&rest.as_bytes()[..length]);
                out.push(Token::Number(number.ok_or_else(|| format!("{:?} is no number", &rest[..length]))?));
                length
            }
            b'"' | b'\'' => quoted(rest, first, out)?,
            _ => {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let sign = sign.ok_or_else(|| format!("{:?} is not expected in {code:?}", rest.chars().next()))?;
                out.push(Token::Sign(sign));
                sign.len()
            }
        };
        rest = rest[length..].trim_start();
    }
    Ok(())
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        let is_part = byte.is_ascii_alphanumeric()
            || (*byte == b'.' && bytes.get(length + 1) != Some(&b'.'))
            || (matches!(byte, b'+' | b'-') && matches!(bytes.get(length - 1), Some(b'e' | b'E')));
        if !is_part {
            break;
        }
        length += 1;
    }
    length
}

/// A text in quotes. Returns its length, with the quotes.
fn quoted(rest: &str, quote: u8, out: &mut Vec<Token>) -> Result<usize, String> {
    let bytes = rest.as_bytes();
    let (mut text, mut at) = (Vec::new(), 1);
    loop {
        let byte = *bytes.get(at).ok_or_else(|| format!("the text {rest:?} is not closed"))?;
        at += 1;
        if byte == quote {
            out.push(Token::Text(text));
            return Ok(at);
        }
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let escaped = *bytes.get(at).ok_or_else(|| format!("the text {rest:?} is not closed"))?;
        at += 1;
        text.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'\\' | b'"' | b'\'' | b'\n' => escaped,
            other => return Err(format!("the escape \\{} is not supported", char::from(other))),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Token, tokens};

    fn verbatim(text: &str) -> String {
        let tokens = tokens(text).unwrap();
        let texts = tokens.iter().map(|token| match token {
            Token::Verbatim(text) => String::from_utf8_lossy(text).into_owned(),
            Token::EndOfCode | Token::EndOfPrint => "|".to_owned(),
            _ => String::new(),
        });
        texts.collect()
    }

    #[test]
    fn blanks_around_marks_are_those_of_the_library() {
        for (text, expected) in [
            ("a {{x}} b", "a | b"),
            ("a\n  {% x %}\nb", "a\n|b"),
            ("a {% x %} b", "a| b"),
            ("a{# no #}\nb", "ab"),
            (r"\{{x}}", "{{x}}"),
            (r"\\{{x}}", r"\|"),
            ("{-raw-}{{x}}{-raw-}\nb", "{{x}}b"),
            ("{\"a\": {\"b\": 1}}", "{\"a\": {\"b\": 1}}"),
            ("{{x", "{{x"),
            ("{ {% x %}", "{|"),
        ] {
            assert_eq!(verbatim(text), expected, "{text}");
        }
    }

    #[test]
    fn words_are_those_of_lua() {
        let name = |name: &str| Token::Name(name.to_owned());
        let found = tokens(
            r#"{*a1..'x"\n' ~= 1.5e3 -- why
            #b*}"#,
        );
        let expected = [
            Token::Print(false),
            name("a1"),
            Token::Sign(".."),
            Token::Text(b"x\"\n".to_vec()),
            Token::Sign("~="),
            Token::Number(1500.0),
            Token::Sign("#"),
            name("b"),
            Token::EndOfPrint,
        ];
        assert_eq!(found.unwrap(), expected);
        for (text, says) in [("{{'x}}", "not closed"), ("{{a ? b}}", "not expected"), ("{(file)}", "not supported")] {
            let error = tokens(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
