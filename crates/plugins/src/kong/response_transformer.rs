//! Kong's `response-transformer`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, ResponseCx};
use weir_wire::name::FieldName;

use super::edits::{Edits, Named};

/// The definition.
#[derive(Debug)]
pub(crate) struct ResponseTransformer;

/// Changes of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    /// Fields, `name:value` each.
    headers: Vec<String>,
    /// Values of a JSON body; not supported.
    json: Vec<String>,
    /// Types of these values.
    json_types: Vec<String>,
}

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
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

impl Define for ResponseTransformer {
    const NAME: &'static str = "response-transformer";
    const PRIORITY: i32 = 800;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "Changes the fields of responses.";
    const EXAMPLE: &'static str = "add: {headers: [\"X-Frame-Options:DENY\"]}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let changes = [
            ("remove", conf.remove),
            ("rename", conf.rename),
            ("replace", conf.replace),
            ("add", conf.add),
            ("append", conf.append),
        ];
        for (name, change) in &changes {
            if !change.json.is_empty() || !change.json_types.is_empty() {
                let text = "changes of JSON bodies are not supported yet";
                cx.say([Invalid::new(format!("{name}.json"), text)]);
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
        Some(Compiled::ready(Changed(edits)))
    }
}

/// An instance.
#[derive(Debug)]
struct Changed(Edits);

impl Plugin for Changed {
    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let has = |cx: &ResponseCx<'_>, name: &FieldName| {
            let response = cx.response();
            response.head.fields.get(response.buffer.bytes(), name).is_some()
        };
        for name in &self.0.remove {
            cx.remove_field(name);
        }
        for (old, new) in &self.0.rename {
            let mut value = cx.take_scratch();
            let response = cx.response();
            if let Some(held) = response.head.fields.get(response.buffer.bytes(), old) {
                value.extend_from_slice(held);
                cx.remove_field(old);
                cx.set_field(new, &value);
            }
            cx.put_scratch(value);
        }
        for Named { name, value } in &self.0.replace {
            if has(cx, name) {
                cx.set_field(name, value.as_bytes());
            }
        }
        for Named { name, value } in &self.0.add {
            if !has(cx, name) {
                cx.add_field(name, value.as_bytes());
            }
        }
        for Named { name, value } in &self.0.append {
            cx.add_field(name, value.as_bytes());
        }
        Flow::Continue
    }
}
