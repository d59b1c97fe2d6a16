//! Kong's `request-transformer`, without templates and bodies.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use super::edits::{Edits, Named};

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestTransformer;

/// Changes of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    /// Fields, `name:value` each.
    headers: Vec<String>,
    /// Query arguments; not supported.
    querystring: Vec<String>,
    /// Values of a body; not supported.
    body: Vec<String>,
    /// The path, in `replace` alone; not supported.
    uri: Option<String>,
}

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The method; not supported.
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
    const DOC: &'static str = "Changes the fields of requests.";
    const EXAMPLE: &'static str = "add: {headers: [\"X-Tenant:a\"]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.http_method.is_some() {
            cx.say([Invalid::new("http_method", "changes of the method are not supported yet")]);
        }
        let changes = [
            ("remove", conf.remove),
            ("rename", conf.rename),
            ("replace", conf.replace),
            ("add", conf.add),
            ("append", conf.append),
        ];
        for (name, change) in &changes {
            for (field, is_given) in [
                ("querystring", !change.querystring.is_empty()),
                ("body", !change.body.is_empty()),
                ("uri", change.uri.is_some()),
            ] {
                if is_given {
                    cx.say([Invalid::new(format!("{name}.{field}"), "only changes of headers are supported yet")]);
                }
            }
            for (at, entry) in change.headers.iter().enumerate().filter(|(_, entry)| entry.contains("$(")) {
                let text = format!("templates are not supported yet: {entry}");
                cx.say([Invalid::new(format!("{name}.headers[{at}]"), text)]);
            }
        }
        let [remove, rename, replace, add, append] = changes.map(|(name, change)| (name, change.headers));
        let edits = Edits {
            remove: cx.ok(Edits::names(remove))?,
            rename: cx.ok(Edits::pairs(rename).and_then(Edits::renames))?,
            replace: cx.ok(Edits::pairs(replace))?,
            add: cx.ok(Edits::pairs(add))?,
            append: cx.ok(Edits::pairs(append))?,
        };
        for Named { name, .. } in edits.replace.iter().chain(&edits.add).chain(&edits.append) {
            if name.text().eq_ignore_ascii_case(b"host") {
                cx.say([Invalid::new("", "changes of the header Host are not supported yet")]);
            }
        }
        Some(Compiled::ready(Changed(edits)))
    }
}

/// An instance.
#[derive(Debug)]
struct Changed(Edits);

impl Plugin for Changed {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let has = |cx: &RequestCx<'_>, name: &FieldName| cx.request().field(name).is_some();
        for name in &self.0.remove {
            cx.request_mut().remove_field(name);
        }
        for (old, new) in &self.0.rename {
            let mut value = cx.take_scratch();
            if let Some(held) = cx.request().field(old) {
                value.extend_from_slice(held);
                cx.request_mut().remove_field(old);
                cx.request_mut().set_field(new, &value);
            }
            cx.put_scratch(value);
        }
        for Named { name, value } in &self.0.replace {
            if has(cx, name) {
                cx.request_mut().set_field(name, value.as_bytes());
            }
        }
        for Named { name, value } in &self.0.add {
            if !has(cx, name) {
                cx.request_mut().add_field(name, value.as_bytes());
            }
        }
        for Named { name, value } in &self.0.append {
            cx.request_mut().add_field(name, value.as_bytes());
        }
        Flow::Continue
    }
}
