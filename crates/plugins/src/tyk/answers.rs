//! `answers`: the redirect to a clean path, fields that Tyk sends upstreams, and its words for failures.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Failure, Flow, Origin, Phases, Plugin, RequestCx, ResponseCx};
use weir_wire::name::FieldName;

use super::VERSION;
use super::body::Form;
use super::changes::FAILED;

/// The definition.
#[derive(Debug)]
pub(crate) struct Answers;

/// As a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Leaves out `X-Generator`.
    hide_generator_header: bool,
    /// Serves paths with empty segments and dots in their clean form, without the redirect.
    http_server_options_skip_url_cleaning: bool,
}

impl Define for Answers {
    const NAME: &'static str = "answers";
    const PRIORITY: i32 = i32::MAX;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Redirects to clean paths; Tyk's words for failures.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        let name = FieldName::constant;
        Some(Compiled::ready(Words {
            hides_generator: conf.hide_generator_header,
            redirects: !conf.http_server_options_skip_url_cleaning,
            user_agent: name("User-Agent"),
            product: format!("Tyk/{VERSION}").into_bytes(),
            generator: name("X-Generator"),
            content_type: name("Content-Type"),
            server: name("Server"),
            foreign: [name("X-APISIX-Upstream-Status"), name("X-Weir-Error")],
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Words {
    hides_generator: bool,
    redirects: bool,
    user_agent: FieldName,
    product: Vec<u8>,
    generator: FieldName,
    content_type: FieldName,
    server: FieldName,
    /// Fields of the gateway's own that Tyk has not.
    foreign: [FieldName; 2],
}

impl Plugin for Words {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.redirects && !is_clean(received_path(cx.request().real_request_uri())) {
            return redirect(cx);
        }
        if cx.request().field(&self.user_agent).is_none() {
            cx.request_mut().set_field(&self.user_agent, &self.product);
        }
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let origin = cx.response().origin;
        if let Origin::Failed(failure) = origin {
            self.tell(cx, failure);
        }
        for field in &self.foreign {
            cx.remove_field(field);
        }
        // Set anew, because a setting puts the gateway's own name in the place of the upstream's.
        let server = cx.response().field_str("server").filter(|_| origin == Origin::Upstream);
        if server.is_some() {
            let mut text = cx.take_scratch();
            text.extend_from_slice(cx.response().field_str("server").unwrap_or_default());
            cx.set_field(&self.server, &text);
            cx.put_scratch(text);
        }
        if self.hides_generator {
            cx.remove_field(&self.generator);
        }
        Flow::Continue
    }
}

impl Words {
    /// Puts Tyk's body in the place of the gateway's own.
    fn tell(&self, cx: &mut ResponseCx<'_>, failure: Failure) {
        let (status, message) = words(failure);
        let form = Form::of(cx.request());
        let mut text = cx.take_scratch();
        form.write(message, &mut text);
        cx.replace_body(&text);
        cx.put_scratch(text);
        if status != failure.status {
            cx.set_status(status);
        }
        cx.set_field(&self.content_type, form.content_type());
        cx.set_field(&self.generator, b"tyk.io");
    }
}

/// Tyk's status and words for a failure.
fn words(failure: Failure) -> (u16, &'static str) {
    match (failure.status, failure.reason) {
        (500, FAILED) => (500, FAILED),
        (502, "node name has no address") => (500, "Upstream host lookup failed"),
        (502, _) => (500, "There was a problem proxying the request"),
        (503, _) => (503, "Service temporarily unavailable."),
        (504, _) => (504, "Upstream service reached hard timeout."),
        (413, _) => (400, "Request is too large"),
        (status @ 400..=499, reason) => (status, reason),
        (status, _) => (status, "There was a problem proxying the request"),
    }
}

/// The path of a target without its query.
fn received_path(target: &[u8]) -> &[u8] {
    target.split(|b| *b == b'?').next().unwrap_or_default()
}

/// True for a path without empty segments and segments of dots.
fn is_clean(path: &[u8]) -> bool {
    let mut begins = false;
    let mut rest = path;
    while let Some((byte, after)) = rest.split_first() {
        if begins {
            let segment = rest.split(|b| *b == b'/').next().unwrap_or_default();
            if segment.is_empty() || segment == b"." || segment == b".." {
                return false;
            }
        }
        begins = *byte == b'/';
        rest = after;
    }
    true
}

/// Appends the clean form of a path, which keeps a slash at its end.
fn clean(path: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    for segment in path.split(|b| *b == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                let last = out.get(start..).and_then(|made| made.iter().rposition(|b| *b == b'/'));
                out.truncate(start + last.unwrap_or(0));
            }
            segment => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
    }
    if out.len() == start || path.ends_with(b"/") {
        out.push(b'/');
    }
}

/// Sends the client to the clean form of the path, as Go's routers do.
fn redirect(cx: &mut RequestCx<'_>) -> Flow {
    let mut location = cx.take_scratch();
    let target = cx.request().real_request_uri();
    let path = received_path(target);
    clean(path, &mut location);
    location.extend_from_slice(target.get(path.len()..).unwrap_or_default());
    let flow = cx.reply(301).field("Location", &location).done();
    cx.put_scratch(location);
    flow
}

#[cfg(test)]
mod tests {
    use super::{clean, is_clean};

    #[test]
    fn paths_are_cleaned_as_in_go() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("/a..b/.c", "/a..b/.c"),
            ("//kl/a", "/kl/a"),
            ("/kl/a//b/", "/kl/a/b/"),
            ("/kl/../kl/a", "/kl/a"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a/.", "/a"),
            ("//", "/"),
        ] {
            let mut out = Vec::new();
            clean(path.as_bytes(), &mut out);
            assert_eq!(
                (String::from_utf8_lossy(&out).as_ref(), is_clean(path.as_bytes())),
                (expected, path == expected)
            );
        }
    }
}
