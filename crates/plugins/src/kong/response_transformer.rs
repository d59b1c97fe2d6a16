//! Kong's `response-transformer`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{BodyCx, CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, Response, ResponseCx};
use weir_wire::name::FieldName;

use super::edits::{Edits, Named};
use super::media::{JsonType, appended, has};

/// The definition.
#[derive(Debug)]
pub(crate) struct ResponseTransformer;

/// Changes of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    /// Fields, `name:value` each.
    headers: Vec<String>,
    /// Values at the top of a JSON object, `name:value` each.
    json: Vec<String>,
    /// Types of these values, by their positions: `string`, `boolean` or `number`.
    json_types: Vec<JsonType>,
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
    const PHASES: Phases = Phases::RESPONSE.and(Phases::BODY);
    const DOC: &'static str = "Changes the fields of responses, and values of JSON bodies.";
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
        let json = JsonChanges::compile(changes.each_ref().map(|(name, change)| (*name, change)));
        let json = cx.ok(json);
        let [remove, rename, replace, add, append] = changes.map(|(name, change)| (name, change.headers));
        let edits = Edits {
            remove: cx.ok(Edits::names(remove))?,
            rename: cx.ok(Edits::pairs(rename).and_then(Edits::renames))?,
            replace: cx.ok(Edits::pairs(replace))?,
            add: cx.ok(Edits::pairs(add))?,
            append: cx.ok(Edits::pairs(append))?,
        };
        Some(Compiled::ready(Changed(edits, json?)))
    }
}

/// An instance.
#[derive(Debug)]
struct Changed(Edits, JsonChanges);

impl Plugin for Changed {
    fn phases(&self, declared: Phases) -> Phases {
        if self.1.is_empty() { declared.without(Phases::BODY) } else { declared }
    }

    fn body(&self, cx: &mut BodyCx<'_>, body: &mut Vec<u8>, _: bool) -> Flow {
        if cx.response().collected
            && is_json(cx.response())
            && let Some(changed) = self.1.apply(body)
        {
            *body = changed;
        }
        Flow::Continue
    }

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
        if !self.1.is_empty() && is_json(cx.response()) {
            cx.filter_body(true);
        }
        Flow::Continue
    }
}

/// True for a response whose media type is JSON, as Kong looks for it.
fn is_json(response: &Response) -> bool {
    let text = response.field_str("content-type").unwrap_or_default();
    let json = b"application/json";
    text.windows(json.len()).any(|window| window.eq_ignore_ascii_case(json))
}

/// A name with its value.
type Pair = (String, Value);

/// Changes of JSON objects, in the order in which they are made.
#[derive(Debug, Default)]
struct JsonChanges {
    remove: Vec<String>,
    rename: Vec<(String, String)>,
    replace: Vec<Pair>,
    add: Vec<Pair>,
    append: Vec<Pair>,
}

impl JsonChanges {
    fn compile([remove, rename, replace, add, append]: [(&str, &Change); 5]) -> Result<Self, Invalid> {
        let split = |change: &str, at: usize, entry: &str| match entry.split_once(':') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Invalid::new(format!("{change}.json[{at}]"), "expected name:value")),
        };
        let pairs = |(change, given): (&str, &Change)| {
            let pair = |(at, entry): (usize, &String)| {
                let (name, value) = split(change, at, entry)?;
                let value = given.json_types.get(at).copied().unwrap_or(JsonType::String).value(value);
                let place = format!("{change}.json[{at}]");
                Ok((name, value.ok_or_else(|| Invalid::new(place, "expected a number after the colon"))?))
            };
            given.json.iter().enumerate().map(pair).collect::<Result<Vec<_>, _>>()
        };
        for (change, given) in [remove, rename] {
            if !given.json_types.is_empty() {
                return Err(Invalid::new(format!("{change}.json_types"), "unknown field"));
            }
        }
        let name = |entry: &String| entry.split(':').next().unwrap_or_default().to_owned();
        Ok(Self {
            remove: remove.1.json.iter().map(name).collect(),
            rename: rename
                .1
                .json
                .iter()
                .enumerate()
                .map(|(at, entry)| split("rename", at, entry))
                .collect::<Result<_, _>>()?,
            replace: pairs(replace)?,
            add: pairs(add)?,
            append: pairs(append)?,
        })
    }

    fn is_empty(&self) -> bool {
        let Self { remove, rename, replace, add, append } = self;
        remove.is_empty() && rename.is_empty() && [replace, add, append].iter().all(|pairs| pairs.is_empty())
    }

    /// The changed body; `None` for one that is no JSON object.
    fn apply(&self, body: &[u8]) -> Option<Vec<u8>> {
        let mut values: Map<String, Value> = serde_json::from_slice(body).ok()?;
        for name in &self.remove {
            values.shift_remove(name);
        }
        for (old, new) in &self.rename {
            if let Some(value) = values.shift_remove(old) {
                values.insert(new.clone(), value);
            }
        }
        for (name, value) in &self.replace {
            if has(&values, name) {
                values.insert(name.clone(), value.clone());
            }
        }
        for (name, value) in &self.add {
            if !has(&values, name) {
                values.insert(name.clone(), value.clone());
            }
        }
        for (name, value) in &self.append {
            let held = values.shift_remove(name);
            values.insert(name.clone(), appended(held, value.clone()));
        }
        serde_json::to_vec(&values).ok()
    }
}
