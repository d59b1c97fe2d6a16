//! `proxy-rewrite`: what the upstream receives instead of the client's own request.

mod replacement;

use std::cell::Cell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_expr::RegexOptions;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::Known;

use super::edits::{Edit, Edits, removed};
use crate::fields::FieldListsConf;
use crate::pattern::Grouped;
use replacement::Replacement;

/// The definition.
#[derive(Debug)]
pub(crate) struct ProxyRewrite;

/// On a route, a service or a global rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The path that the upstream receives, with a query if it holds `?`; variables are replaced. The client's query
    /// follows, after `&` where there is one already.
    #[schemars(length(min = 1, max = 4096), regex(pattern = "^/"))]
    uri: Option<String>,
    /// Pairs of a regular expression and a replacement, for the normalised path; the first expression that matches
    /// counts. The matched text is replaced, the rest of the path stays. In the replacement `$1` or `${1}` is the text
    /// of a group, `$$` is a plain `$`, and variables are replaced. Look-around and back-references are not supported:
    /// matching takes linear time. Without effect beside `uri`.
    #[schemars(length(min = 2))]
    regex_uri: Option<Vec<String>>,
    /// The method that the upstream receives.
    method: Option<MethodName>,
    /// The Host that the upstream receives, where its `pass_host` is `pass`: a name or an IPv4 address, with a port if
    /// need be.
    #[schemars(regex(pattern = "^[0-9a-zA-Z-.]+(:[0-9]{1,5})?$"))]
    host: Option<String>,
    /// The scheme spoken to the upstream, in old files. It has no effect: the `scheme` of the upstream decides.
    scheme: Option<String>,
    /// Changes to the fields: a mapping with `add`, `set` and `remove`, or a mapping from names to values, which are
    /// set. `Host` is not changed here, but by `host`.
    headers: Option<HeadersConf>,
    /// Starts from the request target as the client sent it, with its query, instead of the normalised path, and sends
    /// the result without making it safe. UNSAFE: the upstream may see another path than the one that routes and other
    /// plugins decided on.
    #[schemars(extend("default" = false))]
    use_real_request_uri_unsafe: Option<bool>,
}

/// Methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names are the registered methods")]
pub(crate) enum MethodName {
    Get,
    Post,
    Put,
    Head,
    Delete,
    Options,
    Mkcol,
    Copy,
    Move,
    Propfind,
    Lock,
    Unlock,
    Patch,
    Trace,
}

/// Changes to the fields.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum HeadersConf {
    /// By what is done.
    Edits(EditsConf),
    /// Fields to set.
    Set(FieldListsConf),
}

/// Changes to the fields, made in the order of `add`, `set` and `remove`. In values variables are replaced, and `$1` by
/// what the first group of `regex_uri` matched.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EditsConf {
    /// Fields to add, from name to a value or a list of values.
    add: FieldListsConf,
    /// Fields to set, from name to a value or a list of values, which makes as many fields of that name; an empty value
    /// removes the field.
    set: FieldListsConf,
    /// Names of fields to remove.
    remove: Vec<String>,
}

impl MethodName {
    fn method(self) -> Method {
        match self {
            Self::Get => Method::Get,
            Self::Post => Method::Post,
            Self::Put => Method::Put,
            Self::Head => Method::Head,
            Self::Delete => Method::Delete,
            Self::Options => Method::Options,
            Self::Mkcol => Method::Mkcol,
            Self::Copy => Method::Copy,
            Self::Move => Method::Move,
            Self::Propfind => Method::Propfind,
            Self::Lock => Method::Lock,
            Self::Unlock => Method::Unlock,
            Self::Patch => Method::Patch,
            Self::Trace => Method::Trace,
        }
    }
}

impl Define for ProxyRewrite {
    const NAME: &'static str = "proxy-rewrite";
    const PRIORITY: i32 = 1008;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Changes the request on its way to the upstream: path and query, method, Host, header fields. Changed fields are seen by \
the plugins that follow; the path, the method and the Host are not: routes and plugins go by what the client asked for.

A path is decoded before a regular expression sees it, and encoded again afterwards, so that text from a variable or a \
group never becomes a `?` or ends the path. A result with a dot segment (`/../`) is refused with 400: it would be another \
path for the upstream than it looks.

Fields that frame a message or belong to one connection, such as `Content-Length` and `Connection`, are the gateway's \
own and cannot be changed here.";
    const EXAMPLE: &'static str = "\
regex_uri: [\"^/api/v1/(.*)\", \"/$1\"]
host: backend.example
headers:
  set:
    X-Api-Version: v1
    X-Client: $remote_addr
  remove: [X-Debug]
";

    const TEMPLATES: &'static [&'static str] = &["uri", "regex_uri.*", "headers.*", "headers.*.*", "headers.*.*.*"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.scheme.is_some() {
            cx.warn("scheme", "it has no effect, as in APISIX 3: the scheme of the upstream decides");
        }
        let target = cx.ok(conf.target());
        let edits = cx.ok(conf.edits());
        if edits.as_ref().is_some_and(|edits| edits.touches(Known::Host)) {
            cx.warn("headers", "Host is not changed here, as in APISIX: use the field host");
        }
        if conf.uri.is_some() && conf.regex_uri.is_some() {
            cx.warn("regex_uri", "uri goes before regex_uri, which has no effect");
        }
        cx.say(conf.check_any().err());
        if !conf.has_changes() && conf.use_real_request_uri_unsafe == Some(false) {
            cx.warn("use_real_request_uri_unsafe", "false by itself changes nothing");
        }
        Some(Compiled::ready(Rewriting {
            target: target?,
            raw: conf.use_real_request_uri_unsafe == Some(true),
            host: conf.host.as_ref().map(|host| host.as_bytes().into()),
            method: conf.method.map(MethodName::method),
            edits: edits?.without(Known::Host),
        }))
    }
}

impl Conf {
    /// True if anything is asked for beside `use_real_request_uri_unsafe`.
    fn has_changes(&self) -> bool {
        let texts = [&self.uri, &self.host, &self.scheme];
        texts.iter().any(|text| text.is_some())
            || self.regex_uri.is_some()
            || self.method.is_some()
            || self.headers.is_some()
    }

    fn check_any(&self) -> Result<(), Invalid> {
        // APISIX takes a configuration with this field alone, whatever it says.
        if self.has_changes() || self.use_real_request_uri_unsafe.is_some() {
            return Ok(());
        }
        Err(Invalid::new("", "nothing is changed: expected uri, regex_uri, method, host or headers"))
    }

    fn target(&self) -> Result<TargetRule, Invalid> {
        if let Some(uri) = &self.uri {
            return Replacement::parse(uri, false).map(TargetRule::Uri).map_err(|error| Invalid::new("uri", error));
        }
        let Some(texts) = &self.regex_uri else { return Ok(TargetRule::Same) };
        if texts.len() % 2 != 0 {
            return Err(Invalid::new("regex_uri", "expected pairs of a regular expression and a replacement"));
        }
        let pattern = |(at, pair): (usize, &[String])| {
            let fault = |place: usize| move |message: String| Invalid::new(format!("regex_uri[{place}]"), message);
            let [expression, replacement] = pair else { return Err(fault(2 * at)("expected a pair".into())) };
            let expression = Grouped::compile(expression, RegexOptions::default()).map_err(fault(2 * at))?;
            let replacement = Replacement::parse(replacement, true).map_err(fault(2 * at + 1))?;
            Ok(Pattern { expression, replacement })
        };
        texts.chunks(2).enumerate().map(pattern).collect::<Result<_, _>>().map(TargetRule::Regex)
    }

    fn edits(&self) -> Result<Edits, Invalid> {
        match &self.headers {
            None => Ok(Edits::default()),
            Some(HeadersConf::Set(fields)) => Ok(Edits::new(Vec::new(), fields.compile("headers", true)?, Vec::new())),
            Some(HeadersConf::Edits(conf)) => Ok(Edits::new(
                conf.add.compile("headers.add", true)?.into_iter().flatten().collect(),
                conf.set.compile("headers.set", true)?,
                removed("headers.remove", &conf.remove)?,
            )),
        }
    }
}

/// An instance.
#[derive(Debug)]
struct Rewriting {
    target: TargetRule,
    raw: bool,
    host: Option<Box<[u8]>>,
    method: Option<Method>,
    edits: Edits,
}

#[derive(Debug)]
enum TargetRule {
    Same,
    Uri(Replacement),
    Regex(Box<[Pattern]>),
}

#[derive(Debug)]
struct Pattern {
    expression: Grouped,
    replacement: Replacement,
}

thread_local! {
    /// Room to build a path in, beside the exchange's scratch memory, which holds what the groups matched.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Largest room that is kept.
const KEPT_ROOM: usize = 64 << 10;

impl Plugin for Rewriting {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if let Some(host) = &self.host {
            let upstream = &mut cx.request_mut().upstream.host;
            upstream.clear();
            upstream.extend_from_slice(host);
        }
        let mut room = ROOM.take();
        let done = match &self.target {
            TargetRule::Same => if self.raw { self.replace(cx, None, &[], [b"", b""], &mut room) } else { Ok(()) }
                .map(|()| self.edit(cx, &[], &mut room)),
            TargetRule::Uri(uri) => {
                self.replace(cx, Some(uri), &[], [b"", b""], &mut room).map(|()| self.edit(cx, &[], &mut room))
            }
            TargetRule::Regex(patterns) => self.rewrite_by(patterns, cx, &mut room),
        };
        room.clear();
        room.shrink_to(KEPT_ROOM);
        ROOM.set(room);
        if let Err(reason) = done {
            return cx.fail(400, reason);
        }
        if self.method.is_some() {
            cx.request_mut().upstream.method = self.method;
        }
        Flow::Continue
    }
}

impl Rewriting {
    fn rewrite_by(&self, patterns: &[Pattern], cx: &mut RequestCx<'_>, room: &mut Vec<u8>) -> Result<(), &'static str> {
        let mut text = cx.take_scratch();
        match self.raw {
            true => cx.request().write_real_request_uri(&mut text),
            false => text.extend_from_slice(cx.request().path()),
        }
        let mut done = None;
        for pattern in patterns {
            if let Some(found) = pattern.expression.find(&text) {
                let around = [found.before, found.after];
                let replaced = self.replace(cx, Some(&pattern.replacement), &found.groups, around, room);
                done = Some(replaced.map(|()| self.edit(cx, &found.groups, room)));
                break;
            }
        }
        cx.put_scratch(text);
        done.unwrap_or_else(|| {
            if self.raw {
                self.replace(cx, None, &[], [b"", b""], room)?;
            }
            self.edit(cx, &[], room);
            Ok(())
        })
    }

    /// Sets the upstream's target. Without a replacement it is the received one, but for arguments that were taken out.
    fn replace(
        &self,
        cx: &mut RequestCx<'_>,
        replacement: Option<&Replacement>,
        groups: &[&[u8]],
        around: [&[u8]; 2],
        room: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let mut target = std::mem::take(&mut cx.request_mut().upstream.target);
        target.clear();
        let done = match replacement {
            Some(replacement) if self.raw => {
                // A regular expression has seen the query as well.
                let args = cx.request().query().filter(|_| matches!(self.target, TargetRule::Uri(_)));
                replacement.write_raw(cx.source(), groups, around, args, room, &mut target);
                Ok(())
            }
            Some(replacement) => {
                replacement.write(cx.source(), groups, around, cx.request().query(), room, &mut target)
            }
            None => {
                room.clear();
                cx.request().write_real_request_uri(room);
                weir_wire::target::encode_query(room, &mut target);
                Ok(())
            }
        };
        cx.request_mut().upstream.target = target;
        done
    }

    fn edit(&self, cx: &mut RequestCx<'_>, groups: &[&[u8]], room: &mut Vec<u8>) {
        self.edits.apply(
            cx,
            groups,
            room,
            |cx| cx.source(),
            |cx, name, edit| match edit {
                Edit::Add(value) => cx.request_mut().add_field(name, value),
                Edit::Set(value) => cx.request_mut().set_field(name, value),
                Edit::Remove => cx.request_mut().remove_field(name),
            },
        );
    }
}
