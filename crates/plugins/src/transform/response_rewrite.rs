//! `response-rewrite`: another status, other fields, another body.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_config::Vars;
use weir_expr::{Expr, RegexOptions, Source, Template, compile_regex};
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Failure, Flow, Invalid, PerRequest, Phases, Plugin, ResponseCx,
};
use weir_wire::name::Known;

use super::edits::{Edit, Edits, removed, single};
use crate::fields::{FieldTemplate, FieldsConf};

/// The definition.
#[derive(Debug)]
pub(crate) struct ResponseRewrite;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Status of the response, instead of its own.
    #[schemars(range(min = 200, max = 598))]
    status_code: Option<u16>,
    /// Changes to the fields: a mapping with `add`, `set` and `remove`, or a mapping from names to values, which are
    /// set.
    headers: Option<HeadersConf>,
    /// The body, instead of the response's own. Not with `filters`.
    body: Option<String>,
    /// `body` is written in base64, with or without `=` at its end.
    body_base64: bool,
    /// Replacements in the body, one after the other. The body is collected whole, up to `limits.buffered_body`; one in
    /// gzip is decoded. Not with `body`.
    #[schemars(length(min = 1))]
    filters: Option<Vec<FilterConf>>,
    /// Most bytes of a body that `filters` read, where it is less than `limits.buffered_body`: a longer one is answered
    /// with
    /// 502.
    #[schemars(range(min = 1))]
    max_resp_body_size: u64,
    /// Nothing is changed unless these conditions hold when the head of the response is known.
    vars: Option<Vars>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            status_code: None,
            headers: None,
            body: None,
            body_base64: false,
            filters: None,
            max_resp_body_size: 64 << 20,
            vars: None,
        }
    }
}

/// Changes to the fields.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum HeadersConf {
    /// By what is done.
    Edits(EditsConf),
    /// Fields to set.
    Set(FieldsConf),
}

/// Changes to the fields, made in the order of `add`, `set` and `remove`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EditsConf {
    /// Fields to add, each as `name: value`; variables in the values are replaced.
    add: Vec<String>,
    /// Fields to set, from name to value; variables in the values are replaced, and an empty value removes the field.
    set: FieldsConf,
    /// Names of fields to remove.
    remove: Vec<String>,
}

/// One replacement.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterConf {
    /// A regular expression. Look-around and back-references are not supported: matching takes linear time.
    #[schemars(length(min = 1))]
    regex: String,
    /// The occurrences that are replaced.
    #[serde(default)]
    scope: Scope,
    /// The replacement; `$1` or `${1}` is what a group matched, `$0` is the whole match, `$$` is `$`.
    /// Variables are replaced too.
    replace: String,
    /// Flags of the expression: `i` without regard to case, `m` `^` and `$` at line ends, `s` `.` is any character, `x`
    /// white space and comments, `u` characters instead of bytes, `a` from the beginning only. `j` and `o` mean
    /// nothing.
    #[serde(default = "default_options")]
    options: String,
}

/// The occurrences that a filter replaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    /// The first match.
    #[default]
    Once,
    /// All matches.
    Global,
}

fn default_options() -> String {
    "jo".into()
}

impl Define for ResponseRewrite {
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const PHASES: Phases = Phases::RESPONSE.and(Phases::BODY);
    const DOC: &'static str = "\
Changes a response, whoever gave it: the status, fields, and the body, as a whole or by regular expressions.

With another body `Content-Encoding`, `ETag` and `Last-Modified` go, since they described the one before. `filters` read \
bodies in gzip, up to 16 MiB of decoded text, and change them to up to 16 MiB (502 above); bodies in another coding pass \
unchanged, which the log tells once.";
    const EXAMPLE: &'static str = "\
headers:
  set:
    X-Served-By: $balancer_ip
  remove: [Server]
filters:
  - regex: internal\\.example
    scope: global
    replace: www.example
vars:
  - [status, ==, 200]
";

    const TEMPLATES: &'static [&'static str] = &["headers.*", "headers.set.*", "headers.add.*", "filters.*.replace"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let body = cx.ok(conf.body());
        let edits = cx.ok(conf.edits());
        let filters = cx.ok(conf.filters());
        let empty = conf.headers.is_none() && conf.filters.is_none();
        if empty && conf.status_code.is_none() && conf.body.is_none() {
            cx.warn("", "nothing is changed: expected status_code, headers, body or filters");
        }
        Some(Compiled::ready(Rewriting {
            status: conf.status_code,
            edits: edits?,
            body: body?,
            filters: filters?,
            most: conf.max_resp_body_size,
            vars: conf.vars.map(|vars| vars.expr().clone()),
            filters_body: PerRequest::new(),
            warned: AtomicBool::new(false),
        }))
    }
}

impl Conf {
    fn body(&self) -> Result<Option<Box<[u8]>>, Invalid> {
        match &self.body {
            Some(_) if self.filters.is_some() => Err(Invalid::new("filters", "expected either body or filters")),
            Some(text) if self.body_base64 => match decode_base64(text) {
                Some(body) if !body.is_empty() => Ok(Some(body.into())),
                _ => Err(Invalid::new("body", "expected a text in base64")),
            },
            None if self.body_base64 => Err(Invalid::new("body_base64", "there is no body to decode")),
            text => Ok(text.as_ref().map(|text| text.as_bytes().into())),
        }
    }

    fn edits(&self) -> Result<Edits, Invalid> {
        let conf = match &self.headers {
            None => return Ok(Edits::default()),
            Some(HeadersConf::Set(fields)) => {
                return Ok(Edits::new(Vec::new(), single(fields.compile("headers", false)?), Vec::new()));
            }
            Some(HeadersConf::Edits(conf)) => conf,
        };
        let added = |(at, line): (usize, &String)| {
            let path = format!("headers.add[{at}]");
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Invalid::new(path.as_str(), "expected a text such as 'name: value'"))?;
            let field = FieldTemplate::new("", name.trim(), value.trim(), false);
            field.map_err(|fault| Invalid::coded(path, *fault.code))
        };
        Ok(Edits::new(
            conf.add.iter().enumerate().map(added).collect::<Result<_, _>>()?,
            single(conf.set.compile("headers.set", false)?),
            removed("headers.remove", &conf.remove)?,
        ))
    }

    fn filters(&self) -> Result<Box<[Filter]>, Invalid> {
        let filter = |(at, conf): (usize, &FilterConf)| {
            let fault = |field: &str, message: String| Invalid::new(format!("filters[{at}].{field}"), message);
            let options = RegexOptions::parse(&conf.options).map_err(|message| fault("options", message))?;
            Ok(Filter {
                regex: compile_regex(&conf.regex, options).map_err(|message| fault("regex", message))?.0,
                replace: Template::parse_replacement(&conf.replace).map_err(|e| fault("replace", e.to_string()))?,
                scope: conf.scope,
            })
        };
        self.filters.iter().flatten().enumerate().map(filter).collect()
    }
}

/// Reads base64 as nginx does: up to the first `=`, if there is one. Blanks and line ends around it are left out.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_ascii().split('=').next().unwrap_or_default();
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, config).decode(text).ok()
}

/// An instance.
#[derive(Debug)]
struct Rewriting {
    status: Option<u16>,
    edits: Edits,
    body: Option<Box<[u8]>>,
    filters: Box<[Filter]>,
    /// Most bytes of a body that the filters read.
    most: u64,
    vars: Option<Expr>,
    /// Set for a response whose body the filters read.
    filters_body: PerRequest<()>,
    /// True if a body that could not be read was logged.
    warned: AtomicBool,
}

#[derive(Debug)]
struct Filter {
    regex: Regex,
    replace: Template,
    scope: Scope,
}

/// Most bytes of a body that was decoded or changed by filters: a small one in gzip can be a thousand times as large,
/// and what takes the place of each match may be a field of the request.
const MOST_BODY: usize = 16 << 20;

impl Plugin for Rewriting {
    fn phases(&self, declared: Phases) -> Phases {
        if self.filters.is_empty() { declared.without(Phases::BODY) } else { declared }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        // That of a response in whose place this one is.
        self.filters_body.take(cx);
        if self.vars.as_ref().is_some_and(|vars| !vars.eval(cx.source())) {
            return Flow::Continue;
        }
        if let Some(status) = self.status {
            cx.set_status(status);
        }
        if let Some(body) = &self.body {
            cx.replace_body(body);
            forget_body(cx);
        }
        if !self.filters.is_empty() {
            if cx.response().content_length().is_some_and(|length| length > self.most) {
                return TOO_LONG;
            }
            self.ask_for_body(cx);
        }
        let mut room = cx.take_scratch();
        self.edits.apply(
            cx,
            &[],
            &mut room,
            |cx| cx.source(),
            |cx, name, edit| match edit {
                Edit::Add(value) => cx.add_field(name, value),
                Edit::Set(value) => cx.set_field(name, value),
                Edit::Remove => drop(cx.remove_field(name)),
            },
        );
        cx.put_scratch(room);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, _last: bool) -> Flow {
        if self.filters_body.get(cx).is_none() {
            return Flow::Continue;
        }
        if chunk.len() as u64 > self.most {
            return TOO_LONG;
        }
        if chunk.starts_with(&GZIP)
            && cx.response().head.fields.received(cx.response().buffer.bytes(), b"content-encoding").is_some()
        {
            match gunzip(chunk) {
                Ok(decoded) => *chunk = decoded,
                Err(reason) => return Flow::Abort(Failure::upstream(502, reason)),
            }
        }
        for filter in &self.filters {
            match filter.apply(chunk, cx.source()) {
                Ok(Some(changed)) => *chunk = changed,
                Ok(None) => {}
                Err(reason) => return Flow::Abort(Failure::upstream(502, reason)),
            }
        }
        Flow::Continue
    }
}

const TOO_LONG: Flow = Flow::Abort(Failure::upstream(502, "response body longer than max_resp_body_size"));

/// The first bytes of a gzip stream (RFC 1952 section 2.3.1).
pub(super) const GZIP: [u8; 2] = [0x1f, 0x8b];

impl Rewriting {
    fn ask_for_body(&self, cx: &mut ResponseCx<'_>) {
        let coding = cx.response().field_str("Content-Encoding").map(weir_wire::trim_ows);
        let readable = |coding: &[u8]| {
            [&b"gzip"[..], b"x-gzip", b"identity", b""].iter().any(|known| known.eq_ignore_ascii_case(coding))
        };
        if let Some(coding) = coding.filter(|coding| !readable(coding)) {
            if !self.warned.swap(true, Relaxed) {
                let coding = String::from_utf8_lossy(coding);
                tracing::warn!("response-rewrite: bodies in {coding} are not filtered: only gzip can be decoded");
            }
            return;
        }
        self.filters_body.put(cx, ());
        cx.filter_body(true);
        forget_body(cx);
    }
}

/// Removes the fields that described the body before.
pub(super) fn forget_body(cx: &mut ResponseCx<'_>) {
    let response = cx.response_mut();
    let fields = &mut response.head.fields;
    fields.remove_known(Known::ContentEncoding);
    for name in [&b"ETag"[..], b"Last-Modified"] {
        fields.remove_str(response.buffer.bytes(), name);
    }
}

pub(super) fn gunzip(body: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut decoded = Vec::with_capacity(body.len().saturating_mul(4).min(1 << 20));
    let mut reader = flate2::read::MultiGzDecoder::new(body).take(MOST_BODY as u64 + 1);
    reader.read_to_end(&mut decoded).map_err(|_| "response body is not the gzip stream it claims to be")?;
    if decoded.len() > MOST_BODY {
        return Err("decoded response body too large for a plugin that needs all of it");
    }
    Ok(decoded)
}

impl Filter {
    /// The changed text; `None` when nothing matches.
    fn apply(&self, text: &[u8], source: &dyn Source) -> Result<Option<Vec<u8>>, &'static str> {
        let mut changed = None;
        let mut copied = 0;
        for found in self.regex.captures_iter(text) {
            let Some(whole) = found.get(0) else { break };
            let out = changed.get_or_insert_with(|| Vec::with_capacity(text.len()));
            out.extend_from_slice(text.get(copied..whole.start()).unwrap_or_default());
            let groups: Vec<&[u8]> = found.iter().map(|group| group.map_or(&[][..], |g| g.as_bytes())).collect();
            self.replace.render_with_captures(source, &groups, out);
            copied = whole.end();
            if out.len() + (text.len() - copied) > MOST_BODY {
                return Err("response body too large after the replacements of a plugin");
            }
            if self.scope == Scope::Once {
                break;
            }
        }
        let Some(mut out) = changed else { return Ok(None) };
        out.extend_from_slice(text.get(copied..).unwrap_or_default());
        Ok(Some(out))
    }
}

#[cfg(test)]
mod tests {
    use super::{Filter, GZIP, MOST_BODY, Scope, gunzip};
    use std::io::Write;
    use weir_expr::{RegexOptions, Source, Template, Value, Variable, compile_regex};

    struct Nothing;
    impl Source for Nothing {
        fn variable(&self, _: &Variable) -> Option<Value<'_>> {
            None
        }
    }

    #[test]
    fn filters_replace() {
        for (regex, replace, scope, text, changed) in [
            ("a", "b", Scope::Once, "aaa", Some("baa")),
            ("a", "b", Scope::Global, "aaa", Some("bbb")),
            ("(\\w+)@(\\w+)", "$2 at $1$$", Scope::Once, "x me@home y", Some("x home at me$ y")),
            ("(a)|(b)", "[$1$2]", Scope::Global, "ab", Some("[a][b]")),
            ("$", "!", Scope::Once, "end", Some("end!")),
            ("^", "> ", Scope::Global, "x", Some("> x")),
            ("z", "b", Scope::Global, "aaa", None),
            ("a", "$remote_addr", Scope::Once, "a", Some("")),
        ] {
            let filter = Filter {
                regex: compile_regex(regex, RegexOptions::default()).unwrap().0,
                replace: Template::parse_replacement(replace).unwrap(),
                scope,
            };
            let got = filter.apply(text.as_bytes(), &Nothing).unwrap().map(|text| String::from_utf8(text).unwrap());
            assert_eq!(got.as_deref(), changed, "{regex} {replace} {text}");
        }
    }

    #[test]
    fn filters_do_not_let_a_body_grow_without_bound() {
        let filter = |replace| Filter {
            regex: compile_regex("a", RegexOptions::default()).unwrap().0,
            replace: Template::parse_replacement(replace).unwrap(),
            scope: Scope::Global,
        };
        let text = vec![b'a'; MOST_BODY / 4];
        assert_eq!(filter("bbbb").apply(&text, &Nothing).unwrap().unwrap().len(), MOST_BODY);
        assert!(filter("bbbbb").apply(&text, &Nothing).unwrap_err().contains("too large"));
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decoded_within_bounds() {
        assert!(gzip(b"").starts_with(&GZIP));
        assert_eq!(gunzip(&gzip(b"hello")).unwrap(), b"hello");
        let two = [gzip(b"one "), gzip(b"two")].concat();
        assert_eq!(gunzip(&two).unwrap(), b"one two");
        assert_eq!(gunzip(&gzip(&vec![b'x'; MOST_BODY])).unwrap().len(), MOST_BODY);
        assert!(gunzip(&gzip(&vec![b'x'; MOST_BODY + 1])).unwrap_err().contains("too large"));
        let whole = gzip(b"hello hello hello");
        for cut in 2..whole.len() {
            assert!(gunzip(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}
