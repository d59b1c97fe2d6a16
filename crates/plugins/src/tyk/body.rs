//! Bodies of errors: JSON, or XML where the request is XML.

use weir_plugin::{Flow, Request, RequestCx};

/// Form of the body of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    /// XML under the media type of the request.
    Xml(&'static [u8]),
}

impl Form {
    /// The form for a request: XML if the request itself is XML. `Accept` does not count.
    pub(super) fn of(request: &Request) -> Self {
        const XML: [&[u8]; 3] = [b"application/xml", b"text/xml", b"application/soap+xml"];
        let kind = request.field_str("content-type").unwrap_or_default();
        let kind = weir_wire::trim_ows(kind.split(|b| *b == b';').next().unwrap_or_default());
        XML.into_iter().find(|known| *known == kind).map_or(Self::Json, Self::Xml)
    }

    pub(super) const fn content_type(self) -> &'static [u8] {
        match self {
            Self::Json => b"application/json",
            Self::Xml(kind) => kind,
        }
    }

    /// Appends a body.
    pub(super) fn write(self, message: &str, out: &mut Vec<u8>) {
        match self {
            Self::Json => {
                out.extend_from_slice(b"{\n    \"error\": ");
                // Writing into a vector does not fail.
                serde_json::to_writer(&mut *out, message).unwrap_or_default();
                out.extend_from_slice(b"\n}");
            }
            Self::Xml(_) => {
                out.extend_from_slice(b"<?xml version = \"1.0\" encoding = \"UTF-8\"?>\n<error>");
                message.bytes().for_each(|b| match b {
                    b'&' => out.extend_from_slice(b"&amp;"),
                    b'<' => out.extend_from_slice(b"&lt;"),
                    b'>' => out.extend_from_slice(b"&gt;"),
                    b => out.push(b),
                });
                out.extend_from_slice(b"</error>\n");
            }
        }
    }
}

/// Answers with an error. `fields` are added.
pub(super) fn error(cx: &mut RequestCx<'_>, status: u16, message: &str, fields: &[(&str, &[u8])]) -> Flow {
    let form = Form::of(cx.request());
    let mut body = cx.take_scratch();
    form.write(message, &mut body);
    let mut answer = cx.reply(status).field("Content-Type", form.content_type()).field("X-Generator", b"tyk.io");
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
    fn bodies_are_those_of_tyk() {
        for (form, expected) in [
            (Form::Json, "{\n    \"error\": \"a <b> \\\"c\\\"\"\n}"),
            (
                Form::Xml(b"text/xml"),
                "<?xml version = \"1.0\" encoding = \"UTF-8\"?>\n<error>a &lt;b&gt; \"c\"</error>\n",
            ),
        ] {
            let mut out = Vec::new();
            form.write("a <b> \"c\"", &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }
}
