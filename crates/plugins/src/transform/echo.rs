//! `echo`: fixed text around a body or in its place.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BodyCx, CompileCx, Compiled, Define, Flow, Invalid, PerRequest, Phases, Plugin, ResponseCx};
use weir_wire::name::{FieldName, Known};

use crate::fields::{FieldsConf, editable};

/// The definition.
#[derive(Debug)]
pub(crate) struct Echo;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Text before the body.
    before_body: Option<String>,
    /// The body, instead of the response's own.
    body: Option<String>,
    /// Text after the body.
    after_body: Option<String>,
    /// Fields to set, from name to value. Values are taken as they are: `$` has no meaning.
    #[schemars(length(min = 1))]
    headers: Option<FieldsConf>,
}

impl Define for Echo {
    const NAME: &'static str = "echo";
    const PRIORITY: i32 = 412;
    const PHASES: Phases = Phases::RESPONSE.and(Phases::BODY);
    const DOC: &'static str = "\
Puts fixed text before a response's body, after it or in its place, and sets fields: for trying things out. At least one \
of `before_body`, `body` and `after_body` is needed.

`Content-Length`, `ETag` and `Last-Modified` go, since they described another body. With `body` alone in the place of a \
compressed body, `Content-Encoding` goes too; around a compressed body no text is put, which the log tells once.";
    const EXAMPLE: &'static str = "\
before_body: \"before \"
body: the body
after_body: \" after\"
headers:
  X-Echo: \"yes\"
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.has_text().err());
        let fields = cx.ok(conf.fields())?;
        let text = |text: Option<String>| text.unwrap_or_default().into_bytes();
        let (before, after) = (text(conf.before_body), text(conf.after_body));
        let whole = conf.body.map(|body| [&before, body.as_bytes(), &after].concat().into());
        Some(Compiled::ready(Echoing {
            whole,
            before: before.into(),
            after: after.into(),
            fields,
            left: PerRequest::new(),
            warned: AtomicBool::new(false),
        }))
    }
}

impl Conf {
    fn has_text(&self) -> Result<(), Invalid> {
        match (&self.before_body, &self.body, &self.after_body) {
            (None, None, None) => Err(Invalid::new("", "expected before_body, body or after_body")),
            _ => Ok(()),
        }
    }

    fn fields(&self) -> Result<Box<[Field]>, Invalid> {
        let field = |(name, value): &(String, crate::fields::FieldText)| {
            let path = format!("headers.{name}");
            let name = editable(&path, name)?;
            if !value.0.bytes().all(weir_wire::is_field_byte) {
                return Err(Invalid::new(path, "a field's value may not hold line ends or other control characters"));
            }
            Ok((name, value.0.as_bytes().into()))
        };
        self.headers.iter().flat_map(|fields| &fields.0).map(field).collect()
    }
}

/// A name and a value.
type Field = (FieldName, Box<[u8]>);

/// An instance.
#[derive(Debug)]
struct Echoing {
    /// All of the body, where the response's own is not sent.
    whole: Option<Box<[u8]>>,
    before: Box<[u8]>,
    after: Box<[u8]>,
    fields: Box<[Field]>,
    /// The texts that a body still gets.
    left: PerRequest<Left>,
    /// True if a body that no text can be put around was logged.
    warned: AtomicBool,
}

/// The texts that the body of a response still gets.
#[derive(Debug)]
struct Left {
    before: bool,
    after: bool,
}

impl Plugin for Echoing {
    fn phases(&self, declared: Phases) -> Phases {
        if self.whole.is_some() { declared.without(Phases::BODY) } else { declared }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        // That of a response in whose place this one is.
        self.left.take(cx);
        let response = cx.response_mut();
        let coded = response.head.fields.get_known(response.buffer.bytes(), Known::ContentEncoding).is_some();
        if let Some(whole) = &self.whole {
            response.head.fields.remove_known(Known::ContentEncoding);
            cx.replace_body(whole);
            forget_body(cx);
        } else if coded {
            if !self.warned.swap(true, Relaxed) {
                tracing::warn!("echo: no text is put around a body that has a Content-Encoding");
            }
        } else {
            self.left.put(cx, Left { before: true, after: true });
            cx.filter_body(false);
            forget_body(cx);
        }
        for (name, value) in &self.fields {
            cx.set_field(name, value);
        }
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        let Some(left) = self.left.get_mut(cx) else { return Flow::Continue };
        if std::mem::take(&mut left.before) {
            chunk.splice(..0, self.before.iter().copied());
        }
        if last && std::mem::take(&mut left.after) {
            chunk.extend_from_slice(&self.after);
        }
        Flow::Continue
    }
}

/// Removes the fields that described the body before.
fn forget_body(cx: &mut ResponseCx<'_>) {
    let response = cx.response_mut();
    for name in [&b"ETag"[..], b"Last-Modified"] {
        response.head.fields.remove_str(response.buffer.bytes(), name);
    }
}
