//! Texts of policies: plain, or a Liquid template.

use std::borrow::Cow;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Invalid, View};

use super::state::State;
use super::values::Members;

/// The kind of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TextType {
    /// The text itself.
    #[default]
    Plain,
    /// A template.
    Liquid,
}

/// A text, compiled.
#[derive(Debug)]
pub(super) enum Text {
    Plain(Box<str>),
    Liquid(Box<Template>),
}

/// A template.
pub(super) struct Template(liquid::Template);

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

/// Most bytes of a template.
const MOST: usize = 8192;
/// Tags that a template may have. Loops may take any time, and so they are refused, as APIcast stops them.
const TAGS: [&str; 15] = [
    "if",
    "elsif",
    "else",
    "endif",
    "unless",
    "endunless",
    "case",
    "when",
    "endcase",
    "assign",
    "capture",
    "endcapture",
    "comment",
    "endcomment",
    "raw",
];

static PARSER: LazyLock<Result<liquid::Parser, String>> =
    LazyLock::new(|| liquid::ParserBuilder::with_stdlib().build().map_err(|error| error.to_string()));

/// Names of a service, as templates read them.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) id: Box<str>,
    pub(super) system_name: Box<str>,
}

/// Parts of a request that a template reads.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) view: View<'a>,
    pub(super) state: &'a State,
    pub(super) names: &'a Names,
}

impl Text {
    /// Compiles a text at a place of the configuration.
    pub(super) fn compile(text: &str, kind: TextType, field: &str) -> Result<Self, Invalid> {
        if kind == TextType::Plain {
            return Ok(Self::Plain(text.into()));
        }
        let fault = |text: String| Invalid::new(field, text);
        if text.len() > MOST {
            return Err(fault(format!("expected a template of at most {MOST} bytes")));
        }
        if let Some(tag) = tags(text).find(|tag| !TAGS.contains(tag) && *tag != "endraw") {
            return Err(fault(format!("the tag {tag} is not supported: expected one of {}", TAGS.join(", "))));
        }
        let parser = PARSER.as_ref().map_err(|error| fault(error.clone()))?;
        let parsed = parser.parse(text).map_err(|error| fault(format!("no valid Liquid template: {error}")))?;
        Ok(Self::Liquid(Box::new(Template(parsed))))
    }

    /// The text for a request. A template that fails is empty, as in APIcast.
    pub(super) fn render(&self, around: &Around<'_>) -> Cow<'_, str> {
        self.render_with(|| around.members())
    }

    /// The text, where a template reads other members.
    pub(super) fn render_with(&self, members: impl FnOnce() -> Members) -> Cow<'_, str> {
        match self {
            Self::Plain(text) => Cow::Borrowed(text),
            Self::Liquid(template) => Cow::Owned(template.0.render(&members()).unwrap_or_default()),
        }
    }
}

/// Names of the tags of a template.
fn tags(text: &str) -> impl Iterator<Item = &str> {
    text.split("{%").skip(1).map(|rest| {
        let rest = rest.trim_start_matches('-').trim_start();
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
    })
}

impl<'a> Around<'a> {
    /// The members that templates of every policy have.
    pub(super) fn members(&self) -> Members {
        let Self { view, state, names } = self;
        let (request, client) = (view.request(), view.client());
        let mut all = Members::default();
        all.text("uri", state.path(request));
        all.text("path", state.path(request));
        all.text("host", request.host());
        all.text("remote_addr", client.addr_text.as_bytes());
        all.number("remote_port", client.port.into());
        all.text("scheme", if client.https { b"https" } else { b"http" });
        all.text("http_method", request.method_bytes());
        all.number("server_port", client.local.port().into());
        all.members("headers", Members::of_fields(request.head.fields.iter(request.buffer.bytes())));
        let mut service = Members::default();
        service.text("id", names.id.as_bytes());
        service.text("system_name", names.system_name.as_bytes());
        all.members("service", service);
        let mut credentials = Members::default();
        for (name, value) in state.credentials.named() {
            credentials.text(name, value);
        }
        all.members("credentials", credentials);
        all.members("jwt", state.jwt.as_deref().map(Members::of_json).unwrap_or_default());
        let mut original = Members::default();
        original.text("path", request.path());
        original.text("host", request.host());
        original.text("query", request.query().unwrap_or_default());
        all.members("original_request", original);
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Members, Text, TextType};

    #[test]
    fn templates_are_rendered_and_loops_are_refused() {
        let claims = json!({"azp": "app", "realm": {"roles": ["a", "b"]}, "n": 5});
        let members = || Members::of_json(claims.as_object().expect("an object"));
        for (template, expected) in [
            ("{{azp}}", "app"),
            ("{{ azp | upcase }}-{{missing}}.", "APP-."),
            ("{{ realm.roles | join: '+' }}", "a+b"),
            ("{% if n == 5 %}five{% else %}other{% endif %}", "five"),
            ("{{ missing.deep }}x", "x"),
        ] {
            let text = Text::compile(template, TextType::Liquid, "x").expect("a template");
            assert_eq!(text.render_with(members), expected, "{template}");
        }
        let fields = [(&b"X-Api_Key"[..], &b"k"[..])];
        let text = Text::compile("{{x_api_key}}{{none}}", TextType::Liquid, "x").expect("a template");
        assert_eq!(text.render_with(|| Members::of_fields(fields.into_iter())), "k");
        for (template, says) in [
            ("{% for i in (1..1000000000) %}x{% endfor %}", "the tag for is not supported"),
            ("{{ a | md5_bin }}", "no valid Liquid template"),
            ("{{ a", "no valid Liquid template"),
        ] {
            let error = Text::compile(template, TextType::Liquid, "x").expect_err("no template");
            assert!(error.code.to_string().contains(says), "{template}: {}", error.code);
        }
        let plain = Text::compile("{{a}}", TextType::Plain, "x").expect("a text");
        assert_eq!(plain.render_with(Members::default), "{{a}}");
    }
}
