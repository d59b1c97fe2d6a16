//! Functions that templates may call.

use super::value::Value;

/// Most bytes that a template prints, and of a text that it makes.
pub(super) const MOST: usize = 16 << 20;

/// A function that a template may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    EscapeJson,
    EscapeXml,
    ToText,
    ToNumber,
    Type,
    Upper,
    Lower,
    Len,
    Sub,
    /// Replaces one text by another; patterns are refused.
    Replace,
    Join,
    Floor,
    Ceil,
}

impl Function {
    pub(super) fn call(self, arguments: &[Value]) -> Result<Value, String> {
        let first = arguments.first().unwrap_or(&Value::Nil);
        let text_at = |at: usize| {
            let value = arguments.get(at).unwrap_or(&Value::Nil);
            value.as_text().ok_or_else(|| format!("{} needs a text, not a {} value", self.name(), value.kind()))
        };
        let number_at = |at: usize| {
            let value = arguments.get(at).unwrap_or(&Value::Nil);
            value.number().ok_or_else(|| format!("{} needs a number, not a {} value", self.name(), value.kind()))
        };
        Ok(match self {
            Self::EscapeJson => Value::text(first.to_json().to_string()),
            Self::EscapeXml => Value::text(escaped_for_xml(&text_at(0)?)),
            Self::ToText => match first {
                Value::Nil => Value::text("nil"),
                other => Value::text(other.printed()),
            },
            Self::ToNumber => first.number().map_or(Value::Nil, Value::Number),
            Self::Type => Value::text(first.kind()),
            Self::Upper => Value::text(text_at(0)?.to_ascii_uppercase()),
            Self::Lower => Value::text(text_at(0)?.to_ascii_lowercase()),
            Self::Len => Value::Number(text_at(0)?.len() as f64),
            Self::Sub => {
                let to = if arguments.len() > 2 { number_at(2)? } else { -1.0 };
                Value::text(part(&text_at(0)?, number_at(1)?, to))
            }
            Self::Replace => Value::text(replaced(&text_at(0)?, &text_at(1)?, &text_at(2)?)?),
            Self::Join => {
                let Value::Table(table) = first else {
                    return Err(format!("table.concat needs a table, not a {} value", first.kind()));
                };
                let between = if arguments.len() > 1 { text_at(1)?.into_owned() } else { Vec::new() };
                let texts: Option<Vec<_>> = table.list.iter().map(Value::as_text).collect();
                let texts = texts.ok_or("table.concat needs texts and numbers alone")?;
                if texts.iter().map(|text| text.len() + between.len()).sum::<usize>() > MOST {
                    return Err(format!("a text has more than {MOST} bytes"));
                }
                Value::text(texts.join(between.as_slice()))
            }
            Self::Floor => Value::Number(number_at(0)?.floor()),
            Self::Ceil => Value::Number(number_at(0)?.ceil()),
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::EscapeJson => "_escape_json",
            Self::EscapeXml => "_escape_xml",
            Self::ToText => "tostring",
            Self::ToNumber => "tonumber",
            Self::Type => "type",
            Self::Upper => "string.upper",
            Self::Lower => "string.lower",
            Self::Len => "string.len",
            Self::Sub => "string.sub",
            Self::Replace => "string.gsub",
            Self::Join => "table.concat",
            Self::Floor => "math.floor",
            Self::Ceil => "math.ceil",
        }
    }
}

/// A part of a text by positions as Lua counts them: from 1, from the end where negative.
fn part(text: &[u8], from: f64, to: f64) -> &[u8] {
    let length = text.len() as f64;
    let place = |at: f64| if at < 0.0 { length + at + 1.0 } else { at };
    let (from, to) = (place(from).max(1.0), place(to).min(length));
    if from > to { b"" } else { text.get(from as usize - 1..to as usize).unwrap_or_default() }
}

/// A text with each occurrence of another text replaced.
fn replaced(text: &[u8], wanted: &[u8], by: &[u8]) -> Result<Vec<u8>, String> {
    if wanted.iter().any(|b| b"^$()%.[]*+-?".contains(b)) || by.contains(&b'%') || wanted.is_empty() {
        return Err("string.gsub with a pattern is not supported: only texts are replaced".to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut copied = 0;
    for at in memchr::memmem::find_iter(text, wanted) {
        out.extend_from_slice(text.get(copied..at).unwrap_or_default());
        out.extend_from_slice(by);
        copied = at + wanted.len();
        if out.len() > MOST {
            return Err(format!("a text has more than {MOST} bytes"));
        }
    }
    out.extend_from_slice(text.get(copied..).unwrap_or_default());
    Ok(out)
}

pub(super) fn escaped_for_html(text: &[u8]) -> Vec<u8> {
    escaped(text, |byte| match byte {
        b'&' => Some("&amp;"),
        b'<' => Some("&lt;"),
        b'>' => Some("&gt;"),
        b'"' => Some("&quot;"),
        b'\'' => Some("&#39;"),
        b'/' => Some("&#47;"),
        _ => None,
    })
}

fn escaped_for_xml(text: &[u8]) -> Vec<u8> {
    escaped(text, |byte| match byte {
        b'&' => Some("&amp;"),
        b'<' => Some("&lt;"),
        b'>' => Some("&gt;"),
        b'\'' => Some("&apos;"),
        b'"' => Some("&quot;"),
        _ => None,
    })
}

fn escaped(text: &[u8], of: impl Fn(u8) -> Option<&'static str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match of(*byte) {
            Some(entity) => out.extend_from_slice(entity.as_bytes()),
            None => out.push(*byte),
        }
    }
    out
}
