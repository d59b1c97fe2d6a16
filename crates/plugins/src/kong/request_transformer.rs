//! Kong's `request-transformer`.

mod body;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::arguments::Arguments;
use super::edits::Edits;
use super::media::{JsonType, Media};
use super::template::{self, Template};

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestTransformer;

/// Changes of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    /// Fields, `name:value` each.
    headers: Vec<String>,
    /// Query arguments, `name:value` each.
    querystring: Vec<String>,
    /// Values of a JSON object or a form, `name:value` each.
    body: Vec<String>,
    /// Types of these values in a JSON object, by their positions; in `request-transformer-advanced` alone.
    json_types: Vec<JsonType>,
    /// In `replace` alone: the path that the upstream receives.
    uri: Option<String>,
}

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The method that the upstream receives.
    http_method: Option<String>,
    /// Takes away, by name.
    remove: Change,
    /// Gives another name: `old:new`.
    rename: Change,
    /// Replaces what is there.
    replace: Change,
    /// Adds what is not there.
    add: Change,
    /// Adds in any case.
    append: Change,
}

impl Define for RequestTransformer {
    const NAME: &'static str = "request-transformer";
    const PRIORITY: i32 = 801;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Changes method, path, query, fields and body of requests.";
    const EXAMPLE: &'static str = "add: {headers: [\"X-Tenant:$(headers.x_org or 'none')\"]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let changes = [&conf.remove, &conf.rename, &conf.replace, &conf.add, &conf.append];
        if changes.iter().any(|change| !change.json_types.is_empty()) {
            cx.say([Invalid::new("", "unknown field json_types: request-transformer-advanced has it")]);
        }
        compile(conf, cx)
    }
}

/// Configuration of Kong Enterprise.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdvancedConf {
    /// The method that the upstream receives.
    http_method: Option<String>,
    /// Takes away, by name.
    remove: Change,
    /// Gives another name: `old:new`.
    rename: Change,
    /// Replaces what is there.
    replace: Change,
    /// Adds what is not there.
    add: Change,
    /// Adds in any case.
    append: Change,
    /// Values of a body that are kept, all others being dropped; only none.
    allow: Allow,
    /// True: a dot in a name is a part of the name. Only true.
    dots_in_keys: bool,
}

/// Values that are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Allow {
    /// Names of values of a body.
    body: Vec<String>,
}

impl Default for AdvancedConf {
    fn default() -> Self {
        let Conf { http_method, remove, rename, replace, add, append } = Conf::default();
        Self { http_method, remove, rename, replace, add, append, allow: Allow::default(), dots_in_keys: true }
    }
}

/// The definition of Kong Enterprise's plugin.
#[derive(Debug)]
pub(crate) struct RequestTransformerAdvanced;

impl Define for RequestTransformerAdvanced {
    const NAME: &'static str = "request-transformer-advanced";
    const PRIORITY: i32 = 802;
    const PHASES: Phases = RequestTransformer::PHASES;
    const DOC: &'static str = "Changes requests as request-transformer, with types for values of bodies.";
    const EXAMPLE: &'static str = "add: {body: [\"limit:10\"], json_types: [number]}\n";

    type Conf = AdvancedConf;
    type ConsumerConf = ();

    fn compile(conf: AdvancedConf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if !conf.allow.body.is_empty() {
            cx.say([Invalid::new("allow.body", "not supported: remove the others by name")]);
        }
        if !conf.dots_in_keys {
            cx.say([Invalid::new("dots_in_keys", "paths into bodies are not supported: expected true")]);
        }
        let AdvancedConf { http_method, remove, rename, replace, add, append, .. } = conf;
        compile(Conf { http_method, remove, rename, replace, add, append }, cx)
    }
}

fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
    let method = conf.http_method.map(|name| match Method::parse(name.to_ascii_uppercase().as_bytes()) {
        Method::Other => Err(Invalid::new("http_method", "expected the name of a registered method")),
        method => Ok(method),
    });
    let method = cx.ok(method.transpose());
    let changes = [
        ("remove", conf.remove),
        ("rename", conf.rename),
        ("replace", conf.replace),
        ("add", conf.add),
        ("append", conf.append),
    ];
    let uri = changes.iter().find(|(name, _)| *name == "replace").and_then(|(_, change)| change.uri.as_deref());
    let uri = cx.ok(uri.map(|uri| Template::parse("replace.uri", uri)).transpose());
    for (name, change) in &changes {
        if change.uri.is_some() && *name != "replace" {
            cx.say([Invalid::new(format!("{name}.uri"), "unknown field: only replace has it")]);
        }
    }
    let headers = changes.each_ref().map(|(name, change)| (*name, change.headers.clone()));
    let query = changes.each_ref().map(|(name, change)| (*name, &change.querystring, &[][..]));
    let body = changes.each_ref().map(|(name, change)| (*name, &change.body, &change.json_types[..]));
    let (headers, query, body) =
        (cx.ok(fields(headers)), cx.ok(Named::compile("querystring", query)), cx.ok(Named::compile("body", body)));
    Some(Compiled::ready(Changed { method: method?, uri: uri?, headers: headers?, query: query?, body: body? }))
}

/// Compiles the changes of fields.
fn fields([remove, rename, replace, add, append]: [(&'static str, Vec<String>); 5]) -> Result<FieldChanges, Invalid> {
    let valued = |given: (&'static str, Vec<String>)| {
        let change = given.0;
        let pairs = Edits::pairs(given)?.into_iter().enumerate();
        let field = |(at, pair): (usize, super::edits::Named)| {
            let path = format!("{change}.headers[{at}]");
            let is_host = pair.name.text().eq_ignore_ascii_case(b"host");
            if is_host && change != "replace" {
                return Err(Invalid::new(path, "Host can be replaced only: write it under replace.headers"));
            }
            Ok(Field { is_host, value: Template::parse(&path, &pair.value)?, name: pair.name })
        };
        pairs.map(field).collect::<Result<Vec<_>, _>>()
    };
    Ok(FieldChanges {
        remove: Edits::names(remove)?,
        rename: Edits::pairs(rename).and_then(Edits::renames)?,
        replace: valued(replace)?,
        add: valued(add)?,
        append: valued(append)?,
    })
}

/// A field with its value.
#[derive(Debug)]
struct Field {
    name: FieldName,
    value: Template,
    is_host: bool,
}

/// Changes of fields, in the order in which they are made.
#[derive(Debug)]
struct FieldChanges {
    remove: Vec<FieldName>,
    rename: Vec<(FieldName, FieldName)>,
    replace: Vec<Field>,
    add: Vec<Field>,
    append: Vec<Field>,
}

/// A name with a value, and the type of the value in a JSON object.
type Pair = (Template, Template, JsonType);

/// The entries of one kind of change, with types.
type Entries<'c> = (&'static str, &'c Vec<String>, &'c [JsonType]);

/// Changes of arguments or of values of a body, in the order in which they are made.
#[derive(Debug)]
struct Named {
    remove: Vec<Template>,
    rename: Vec<Pair>,
    replace: Vec<Pair>,
    add: Vec<Pair>,
    append: Vec<Pair>,
}

impl Named {
    fn compile(of: &str, [remove, rename, replace, add, append]: [Entries<'_>; 5]) -> Result<Self, Invalid> {
        let pairs = |(change, entries, types): Entries<'_>| {
            let pair = |(at, entry): (usize, &String)| {
                let path = format!("{change}.{of}[{at}]");
                let Some((name, value)) = entry.split_once(':').filter(|(name, _)| !name.is_empty()) else {
                    return Err(Invalid::new(path, "expected name:value"));
                };
                let literal = Template::parse(&path, name)?;
                if literal.literal().is_none() {
                    return Err(Invalid::new(path, "a template in a name is not supported: write it in the value"));
                }
                let kind = types.get(at).copied().unwrap_or(JsonType::String);
                Ok((literal, Template::parse(&path, value)?, kind))
            };
            entries.iter().enumerate().map(pair).collect::<Result<Vec<_>, _>>()
        };
        let (change, names, _) = remove;
        let name = |(at, entry): (usize, &String)| {
            let path = format!("{change}.{of}[{at}]");
            let name = Template::parse(&path, entry.split(':').next().unwrap_or_default())?;
            match name.literal() {
                Some(_) => Ok(name),
                None => Err(Invalid::new(path, "a template in a name is not supported")),
            }
        };
        Ok(Self {
            remove: names.iter().enumerate().map(name).collect::<Result<_, _>>()?,
            rename: pairs(rename)?,
            replace: pairs(replace)?,
            add: pairs(add)?,
            append: pairs(append)?,
        })
    }

    fn is_empty(&self) -> bool {
        let Self { remove, rename, replace, add, append } = self;
        remove.is_empty() && [rename, replace, add, append].iter().all(|pairs| pairs.is_empty())
    }
}

/// The name and the value of a pair for a request.
fn rendered<'p>((name, value, _): &'p Pair, cx: &RequestCx<'_>) -> (&'p [u8], Vec<u8>) {
    let mut text = Vec::new();
    value.render(cx, &mut text);
    (name.literal().unwrap_or_default(), text)
}

/// An instance.
#[derive(Debug)]
struct Changed {
    method: Option<Method>,
    uri: Option<Template>,
    headers: FieldChanges,
    query: Named,
    body: Named,
}

impl Plugin for Changed {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let media = Media::of(cx.request().field_str("content-type").unwrap_or_default());
        let moves_form =
            media == Some(Media::Form) && matches!(self.method, Some(Method::Get | Method::Head | Method::Trace));
        let changes_body = media.is_some() && !self.body.is_empty();
        if (moves_form || changes_body) && cx.body().is_none() {
            return Flow::AwaitBody;
        }
        // All templates are read before anything changes.
        let mut query = None;
        if !self.query.is_empty() {
            query = Some(self.changed_query(cx));
        }
        if moves_form {
            let form = Arguments::parse(cx.body().unwrap_or_default());
            if !form.is_empty() {
                let mut all = query.unwrap_or_else(|| Arguments::parse(cx.request().query().unwrap_or_default()));
                all.extend(form);
                query = Some(all);
            }
        }
        let body = media.filter(|_| changes_body).and_then(|media| body::changed(media, &self.body, cx));
        let uri = self.uri.as_ref().map(|uri| {
            let mut path = Vec::new();
            uri.render_with(cx, &mut path, put_in_path);
            path
        });
        self.change_fields(cx);
        if let Some(body) = body {
            cx.replace_body(&body);
        }
        if let Some(query) = query {
            let mut text = cx.take_scratch();
            query.write(&mut text);
            cx.request_mut().set_query(&text);
            cx.put_scratch(text);
        }
        if let Some(method) = self.method {
            cx.request_mut().upstream.method = Some(method);
        }
        if let Some(path) = uri {
            set_path(cx, &path);
        }
        template::outcome(cx)
    }
}

/// Appends a value of the request to a path: what would end the path is encoded.
fn put_in_path(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        if byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#') {
            out.push(byte);
        } else {
            weir_wire::target::push_escape(out, byte);
        }
    }
}

/// Sends the request to this path, with its query.
fn set_path(cx: &mut RequestCx<'_>, path: &[u8]) {
    let request = cx.request_mut();
    let mut target = std::mem::take(&mut request.upstream.target);
    target.clear();
    if !path.starts_with(b"/") {
        target.push(b'/');
    }
    weir_wire::target::encode_query(path, &mut target);
    if let Some(query) = request.query() {
        target.push(if path.contains(&b'?') { b'&' } else { b'?' });
        weir_wire::target::encode_query(query, &mut target);
    }
    request.upstream.target = target;
}

/// Ends a value in scratch memory; no value of a field has one (RFC 9110 section 5.5).
const END: u8 = b'\n';

impl Changed {
    fn changed_query(&self, cx: &RequestCx<'_>) -> Arguments {
        let mut all = Arguments::parse(cx.request().query().unwrap_or_default());
        let changes = &self.query;
        for name in &changes.remove {
            all.remove(name.literal().unwrap_or_default());
        }
        for pair in &changes.rename {
            let (old, new) = rendered(pair, cx);
            all.rename(old, &new);
        }
        for pair in &changes.replace {
            let (name, value) = rendered(pair, cx);
            if all.has(name) {
                all.set(name, &value);
            }
        }
        for pair in &changes.add {
            let (name, value) = rendered(pair, cx);
            if !all.has(name) {
                all.set(name, &value);
            }
        }
        for pair in &changes.append {
            let (name, value) = rendered(pair, cx);
            all.append(name, &value);
        }
        all
    }

    fn change_fields(&self, cx: &mut RequestCx<'_>) {
        let changes = &self.headers;
        let mut room = cx.take_scratch();
        for field in changes.replace.iter().chain(&changes.add).chain(&changes.append) {
            let begin = room.len();
            field.value.render(cx, &mut room);
            for byte in room.iter_mut().skip(begin).filter(|byte| !weir_wire::is_field_byte(**byte)) {
                *byte = b' ';
            }
            room.push(END);
        }
        let mut values = room.split(|byte| *byte == END);
        let has = |cx: &RequestCx<'_>, name: &FieldName| cx.request().field(name).is_some();
        for name in &changes.remove {
            cx.request_mut().remove_field(name);
        }
        for (old, new) in &changes.rename {
            rename(cx, old, new);
        }
        for (field, value) in changes.replace.iter().zip(&mut values) {
            if field.is_host {
                cx.request_mut().upstream.set_host(value);
            } else if has(cx, &field.name) {
                cx.request_mut().set_field(&field.name, value);
            }
        }
        // `zip` asks the fields first, so that no value is lost between two lists.
        for (field, value) in changes.add.iter().zip(&mut values) {
            if !has(cx, &field.name) {
                cx.request_mut().add_field(&field.name, value);
            }
        }
        for (field, value) in changes.append.iter().zip(&mut values) {
            cx.request_mut().add_field(&field.name, value);
        }
        cx.put_scratch(room);
    }
}

/// Gives all fields of a name another one, in place of those that have it.
fn rename(cx: &mut RequestCx<'_>, old: &FieldName, new: &FieldName) {
    let request = cx.request();
    let held: Vec<u8> = request.head.fields.all(request.buffer.bytes(), old).fold(Vec::new(), |mut held, value| {
        held.extend_from_slice(value);
        held.push(END);
        held
    });
    if held.is_empty() {
        return;
    }
    cx.request_mut().remove_field(old);
    cx.request_mut().remove_field(new);
    for value in held.strip_suffix(&[END]).unwrap_or_default().split(|byte| *byte == END) {
        cx.request_mut().add_field(new, value);
    }
}
