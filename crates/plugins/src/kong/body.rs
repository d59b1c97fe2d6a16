//! Bodies of errors: JSON, HTML, text or XML, by what the client accepts.

use weir_expr::{Value, Variable};
use weir_plugin::{Flow, RequestCx};

/// Form of the body of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Html,
    Plain,
    Xml,
}

impl Form {
    /// The form for a value of `Accept`: the type of the highest `q` counts, of equal ones the first. Types are compared
    /// case-sensitively, and any other type gets JSON.
    pub(super) fn accepted(accept: &[u8]) -> Self {
        let mut best = (0, Self::Json);
        for part in accept.split(|b| *b == b',') {
            let mut pieces = part.split(|b| *b == b';').map(weir_wire::trim_ows);
            let kind = pieces.next().unwrap_or_default();
            let q = pieces.find_map(|piece| piece.strip_prefix(b"q=")).map_or(1000, thousandths);
            if q > best.0 {
                best = (q, Self::of_type(kind).unwrap_or(Self::Json));
            }
        }
        best.1
    }

    /// The form of a media type.
    pub(super) fn of_type(kind: &[u8]) -> Option<Self> {
        Some(match kind {
            b"application/json" | b"application/*" | b"*/*" => Self::Json,
            b"text/html" => Self::Html,
            b"text/plain" | b"text/*" => Self::Plain,
            b"application/xml" => Self::Xml,
            _ => return None,
        })
    }

    pub(super) const fn content_type(self) -> &'static [u8] {
        match self {
            Self::Json => b"application/json; charset=utf-8",
            Self::Html => b"text/html; charset=utf-8",
            Self::Plain => b"text/plain; charset=utf-8",
            Self::Xml => b"application/xml; charset=utf-8",
        }
    }

    /// Appends a body.
    pub(super) fn write(self, message: &str, id: &[u8], out: &mut Vec<u8>) {
        let (before, between, after): (&str, &str, &str) = match self {
            Self::Json => ("{\n  \"message\":", ",\n  \"request_id\":\"", "\"\n}"),
            Self::Plain => ("", "\nrequest_id: ", "\n"),
            Self::Html => (
                "<!doctype html>\n<html>\n  <head>\n    <meta charset=\"utf-8\">\n    <title>Error</title>\n  </head>\n  \
                 <body>\n    <h1>Error</h1>\n    <p>",
                ".</p>\n    <p>request_id: ",
                "</p>\n  </body>\n</html>\n",
            ),
            Self::Xml => (
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<error>\n  <message>",
                "</message>\n  <requestid>",
                "</requestid>\n</error>\n",
            ),
        };
        out.extend_from_slice(before.as_bytes());
        match self {
            // Writing into a vector does not fail.
            Self::Json => serde_json::to_writer(&mut *out, message).unwrap_or_default(),
            Self::Plain => out.extend_from_slice(message.as_bytes()),
            Self::Html | Self::Xml => message.bytes().for_each(|b| match b {
                b'&' => out.extend_from_slice(b"&amp;"),
                b'<' => out.extend_from_slice(b"&lt;"),
                b'>' => out.extend_from_slice(b"&gt;"),
                b => out.push(b),
            }),
        }
        out.extend_from_slice(between.as_bytes());
        out.extend_from_slice(id);
        out.extend_from_slice(after.as_bytes());
    }
}

/// A weight of `Accept` in thousandths.
fn thousandths(q: &[u8]) -> u32 {
    let q: f64 = std::str::from_utf8(q).ok().and_then(|q| q.parse().ok()).unwrap_or(1.0);
    (q.clamp(0.0, 1.0) * 1000.0) as u32
}

/// Id of a request.
pub(super) fn request_id(source: &dyn weir_expr::Source) -> &[u8] {
    match source.variable(&Variable::RequestId) {
        Some(Value::Bytes(id)) => id,
        _ => b"",
    }
}

/// Answers with an error in the form that the client accepts. `fields` are added.
pub(super) fn error(cx: &mut RequestCx<'_>, status: u16, message: &str, fields: &[(&str, &[u8])]) -> Flow {
    let form = cx.request().field_str("accept").map_or(Form::Json, Form::accepted);
    let mut body = cx.take_scratch();
    form.write(message, request_id(cx.source()), &mut body);
    let mut answer = cx.reply(status).field("Content-Type", form.content_type());
    for (name, value) in fields {
        answer = answer.field(name, value);
    }
    let flow = answer.body(&body).done();
    cx.put_scratch(body);
    flow
}

#[cfg(test)]
mod tests {
    use super::Form;

    #[test]
    fn the_accepted_form_is_chosen() {
        for (accept, form) in [
            ("", Form::Json),
            ("application/json; charset=utf-8", Form::Json),
            ("image/png", Form::Json),
            ("image/png, text/plain", Form::Json),
            ("TEXT/PLAIN", Form::Json),
            ("text/xml", Form::Json),
            ("text/plain;q=0", Form::Json),
            ("text/*", Form::Plain),
            ("text/html, application/json", Form::Html),
            ("application/json;q=0.5, text/html;q=0.7", Form::Html),
            ("text/html;q=0.3, application/xml", Form::Xml),
        ] {
            assert_eq!(Form::accepted(accept.as_bytes()), form, "{accept}");
        }
    }

    #[test]
    fn bodies_are_those_of_kong() {
        for (form, expected) in [
            (Form::Json, "{\n  \"message\":\"a <b>\",\n  \"request_id\":\"7\"\n}"),
            (Form::Plain, "a <b>\nrequest_id: 7\n"),
            (
                Form::Xml,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<error>\n  <message>a &lt;b&gt;</message>\n  <requestid>7</requestid>\n</error>\n",
            ),
        ] {
            let mut out = Vec::new();
            form.write("a <b>", b"7", &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
        let mut out = Vec::new();
        Form::Html.write("x", b"7", &mut out);
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("    <p>x.</p>\n    <p>request_id: 7</p>\n  </body>\n</html>\n"), "{text}");
    }
}
