//! `data-mask`: parts of requests are masked for whoever writes them down.

use std::borrow::Cow;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_json_path::{JsonPath, PathElement};
use weir_expr::{RegexOptions, compile_regex};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::head::Content;
use weir_wire::name::FieldName;
use weir_wire::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct DataMask;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Parts of requests, which are masked one after the other.
    request: Vec<RuleConf>,
    /// Bytes of the longest body that is masked. Of a longer one nothing is written down.
    #[schemars(extend("exclusiveMinimum" = 0))]
    max_body_size: u64,
    /// Most arguments of a form that are written down; 0: all of them.
    max_req_post_args: usize,
}

impl Default for Conf {
    fn default() -> Self {
        Self { request: Vec::new(), max_body_size: 1 << 20, max_req_post_args: 100 }
    }
}

/// A part of requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleConf {
    /// The place of the part.
    r#type: Place,
    /// The form of the body, which a part of it needs.
    body_format: Option<Form>,
    /// The argument or the header; in JSON a path such as `$.users[*].token` (RFC 9535).
    name: String,
    /// The change: `remove` takes the part away, `replace` puts `value` in its place, `regex` puts it in the place of the first match of
    /// `regex`.
    action: Action,
    /// A regular expression.
    regex: Option<String>,
    /// The text in the place of the part; with `regex`, `$1` is a group.
    value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Place {
    Query,
    Header,
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Form {
    Json,
    Urlencoded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Action {
    Regex,
    Replace,
    Remove,
}

impl Define for DataMask {
    const NAME: &'static str = "data-mask";
    const PRIORITY: i32 = 1500;
    const PHASES: Phases = Phases::ACCESS.and(Phases::LOG);
    const DOC: &'static str = "\
Masks arguments, headers and parts of bodies of requests for the access log, loggers and traces. Clients and upstreams see \
nothing of it. All values of an argument or a header are masked.

Rules for the body say its form: `json`, whose parts are named by paths of RFC 9535, or `urlencoded`. A body that no rule's form \
fits, one longer than `max_body_size` and one that came without its length are not written down at all. (APISIX writes them down as they came.)

Loggers of global rules run before the plugins of a route: where there are such loggers, the mask stands \
in a global rule, too.";
    const EXAMPLE: &'static str = "\
request:
  - {type: query, name: token, action: remove}
  - {type: header, name: Authorization, action: replace, value: '***'}
  - {type: body, body_format: json, name: '$.card.number', action: regex, regex: '^.*(....)$', value: '****$1'}
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut mask =
            Mask { most_bytes: conf.max_body_size, most_arguments: conf.max_req_post_args, ..Mask::default() };
        if conf.max_body_size == 0 {
            cx.say([Invalid::new("max_body_size", "expected a number of bytes of at least 1")]);
            return None;
        }
        for (at, rule) in conf.request.into_iter().enumerate() {
            let added = mask.add(rule).map_err(|(field, text)| Invalid::new(format!("request[{at}].{field}"), text));
            cx.ok(added)?;
        }
        Some(Compiled::ready(mask))
    }
}

/// A change of a text.
#[derive(Debug)]
enum Change {
    Remove,
    Replace(String),
    /// An expression, and the text in the place of its first match.
    Regex(Regex, String),
}

impl Change {
    fn compile(action: Action, regex: Option<&str>, value: Option<String>) -> Result<Self, (&'static str, String)> {
        let value = || value.ok_or_else(|| ("value", "is missing".to_owned()));
        Ok(match action {
            Action::Remove => Self::Remove,
            Action::Replace => Self::Replace(value()?),
            Action::Regex => {
                let pattern = regex.ok_or_else(|| ("regex", "is missing".to_owned()))?;
                let compiled = compile_regex(pattern, RegexOptions::default());
                Self::Regex(compiled.map_err(|error| ("regex", error))?.0, value()?)
            }
        })
    }

    /// The text in the place of another; `None`: there is none any more.
    fn of<'t>(&self, text: &'t [u8]) -> Option<Cow<'t, [u8]>> {
        Some(match self {
            Self::Remove => return None,
            Self::Replace(value) => value.clone().into_bytes().into(),
            Self::Regex(regex, value) => regex.replacen(text, 1, value.as_bytes()),
        })
    }
}

/// An instance. Masking allocates.
#[derive(Debug, Default)]
struct Mask {
    arguments: Vec<(Vec<u8>, Change)>,
    headers: Vec<(FieldName, Change)>,
    json: Vec<(JsonPath, Change)>,
    form: Vec<(Vec<u8>, Change)>,
    most_bytes: u64,
    most_arguments: usize,
}

impl Mask {
    fn add(&mut self, rule: RuleConf) -> Result<(), (&'static str, String)> {
        let change = Change::compile(rule.action, rule.regex.as_deref(), rule.value)?;
        match (rule.r#type, rule.body_format) {
            (Place::Query, _) => self.arguments.push((rule.name.into_bytes(), change)),
            (Place::Header, _) => {
                let name = FieldName::new(&rule.name);
                self.headers.push((name.ok_or_else(|| ("name", "expected the name of a header".to_owned()))?, change));
            }
            (Place::Body, None) => return Err(("body_format", "is missing".to_owned())),
            (Place::Body, Some(Form::Urlencoded)) => self.form.push((rule.name.into_bytes(), change)),
            (Place::Body, Some(Form::Json)) => {
                let path = JsonPath::parse(&rule.name);
                let path = path.map_err(|error| ("name", format!("expected a path of JSON (RFC 9535): {error}")))?;
                self.json.push((path, change));
            }
        }
        Ok(())
    }

    fn masks_bodies(&self) -> bool {
        !self.json.is_empty() || !self.form.is_empty()
    }

    fn mask_headers(&self, cx: &mut RequestCx<'_>) {
        for (name, change) in &self.headers {
            let request = cx.request();
            let values = request.head.fields.all(request.buffer.bytes(), name);
            let values: Vec<Option<Vec<u8>>> =
                values.map(|value| change.of(value).map(|masked| one_line(&masked))).collect();
            if values.is_empty() {
                continue;
            }
            let joined = values.into_iter().flatten().collect::<Vec<_>>().join(&b", "[..]);
            match change {
                Change::Remove => cx.request_mut().remove_field(name),
                _ => cx.request_mut().set_field(name, &joined),
            }
        }
    }

    /// The body as it may be written down; `None`: nothing of it.
    fn body(&self, cx: &RequestCx<'_>) -> Option<Vec<u8>> {
        let body = cx.body().filter(|body| body.len() as u64 <= self.most_bytes)?;
        let kind = cx.request().field_str("content-type").unwrap_or_default();
        if !self.form.is_empty() && kind.starts_with(b"application/x-www-form-urlencoded") {
            return Some(masked_arguments(&self.form, body, self.most_arguments).unwrap_or_else(|| body.to_vec()));
        }
        if self.json.is_empty() {
            return None;
        }
        let mut value = serde_json::from_slice::<Value>(body).ok()?;
        for (path, change) in &self.json {
            mask_json(&mut value, path, change);
        }
        serde_json::to_vec(&value).ok()
    }
}

impl Plugin for Mask {
    fn phases(&self, declared: Phases) -> Phases {
        if self.masks_bodies() { declared } else { declared.without(Phases::ACCESS) }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.request().head.content {
            Content::Length(length) if length <= self.most_bytes && cx.body().is_none() => Flow::AwaitBody,
            _ => Flow::Continue,
        }
    }

    fn before_log(&self, cx: &mut RequestCx<'_>) {
        let query = cx.request().query().and_then(|query| masked_arguments(&self.arguments, query, 0));
        self.mask_headers(cx);
        if self.masks_bodies() && cx.request().head.content != Content::None {
            let body = self.body(cx);
            cx.request_mut().mask_body(body);
        }
        if let Some(query) = query {
            cx.request_mut().mask_query(&query);
        }
    }
}

/// A text without the ends of lines, as the value of a field has to be.
fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|byte| if weir_wire::is_field_byte(*byte) { *byte } else { b' ' }).collect()
}

/// Arguments with their masks, and `most` of them at most; `None`: nothing changes.
fn masked_arguments(rules: &[(Vec<u8>, Change)], written: &[u8], most: usize) -> Option<Vec<u8>> {
    let (mut made, mut changed) = (Vec::with_capacity(written.len()), false);
    for (number, argument) in written.split(|byte| *byte == b'&').enumerate() {
        if most > 0 && number >= most {
            changed = true;
            break;
        }
        let mut own: Option<Cow<'_, [u8]>> = Some(argument.into());
        for (name, change) in rules.iter().filter(|(name, _)| query::has_name(argument, name)) {
            changed = true;
            let Some(held) = &own else { break };
            let value = held.splitn(2, |byte| *byte == b'=').nth(1).unwrap_or_default();
            let mut decoded = Vec::new();
            query::decode(value, &mut decoded);
            own = change.of(&decoded).map(|masked| {
                let mut made = Vec::new();
                query::encode(name, &mut made);
                made.push(b'=');
                query::encode(&masked, &mut made);
                made.into()
            });
        }
        if let Some(own) = own {
            if !made.is_empty() {
                made.push(b'&');
            }
            made.extend_from_slice(&own);
        }
    }
    changed.then_some(made)
}

/// Masks the parts of a document that a path names, the last first, so that places in lists stay what they are.
fn mask_json(value: &mut Value, path: &JsonPath, change: &Change) {
    let found = path.query_located(value);
    let mut places: Vec<Vec<Step>> = found.locations().map(|place| place.iter().map(Step::of).collect()).collect();
    places.sort_unstable();
    for place in places.into_iter().rev() {
        let Some((last, way)) = place.split_last() else {
            // The document itself.
            *value = masked(value, change).unwrap_or(Value::Null);
            continue;
        };
        let parent = way.iter().try_fold(&mut *value, |value, step| step.of_mut(value));
        let Some(parent) = parent else { continue };
        match (last.of_mut(parent).and_then(|own| masked(own, change)), last) {
            (Some(made), _) => {
                if let Some(own) = last.of_mut(parent) {
                    *own = made;
                }
            }
            (None, Step::Name(name)) => {
                parent.as_object_mut().and_then(|fields| fields.shift_remove(name));
            }
            (None, Step::Number(number)) => {
                if let Some(items) = parent.as_array_mut().filter(|items| *number < items.len()) {
                    items.remove(*number);
                }
            }
        }
    }
}

/// The value in the place of another. `regex` looks at texts and at numbers, whose digits may be as secret; others go.
fn masked(value: &Value, change: &Change) -> Option<Value> {
    let text = match (change, value) {
        (Change::Remove, _) => return None,
        (Change::Replace(value), _) => return Some(value.clone().into()),
        (Change::Regex(..), Value::String(text)) => text.clone(),
        (Change::Regex(..), Value::Number(number)) => number.to_string(),
        (Change::Regex(..), Value::Null | Value::Bool(_)) => return Some(value.clone()),
        (Change::Regex(..), _) => return None,
    };
    let made = change.of(text.as_bytes())?;
    if *made == *text.as_bytes() {
        return Some(value.clone());
    }
    Some(String::from_utf8_lossy(&made).into_owned().into())
}

/// A step of the way into a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Name(String),
    Number(usize),
}

impl Step {
    fn of(element: &PathElement<'_>) -> Self {
        match element {
            PathElement::Name(name) => Self::Name((*name).to_owned()),
            PathElement::Index(number) => Self::Number(*number),
        }
    }

    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        match self {
            Self::Name(name) => value.get_mut(name),
            Self::Number(number) => value.get_mut(*number),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use serde_json_path::JsonPath;

    use super::{Action, Change, mask_json, masked_arguments};

    fn change(action: Action) -> Change {
        Change::compile(action, Some("^(.).*$"), Some("$1*".to_owned())).expect("a change")
    }

    #[test]
    fn parts_of_documents_are_masked() {
        let document = json!({"users": [{"token": "abc", "n": 42}, {"token": "def"}, {"token": [1]}], "token": null});
        for (path, action, expected) in [
            (
                "$.users[*].token",
                Action::Regex,
                json!({"users": [{"token": "a*", "n": 42}, {"token": "d*"}, {}], "token": null}),
            ),
            (
                "$..n",
                Action::Regex,
                json!({"users": [{"token": "abc", "n": "4*"}, {"token": "def"}, {"token": [1]}], "token": null}),
            ),
            ("$..token", Action::Remove, json!({"users": [{"n": 42}, {}, {}]})),
            ("$.users[0:2]", Action::Remove, json!({"users": [{"token": [1]}], "token": null})),
            ("$.users", Action::Replace, json!({"users": "$1*", "token": null})),
            ("$.nothing", Action::Replace, document.clone()),
            ("$", Action::Remove, Value::Null),
        ] {
            let mut value = document.clone();
            mask_json(&mut value, &JsonPath::parse(path).expect("a path"), &change(action));
            assert_eq!(value, expected, "{path} {action:?}");
        }
    }

    #[test]
    fn all_values_of_an_argument_are_masked() {
        for (action, written, most, expected) in [
            (Action::Remove, "a=1&b=2&a=3", 0, Some("b=2")),
            (Action::Replace, "a=1&b=2&a", 0, Some("a=$1*&b=2&a=$1*")),
            (Action::Regex, "a=x%20y&b=2&%61=z", 0, Some("a=x*&b=2&a=z*")),
            (Action::Remove, "b=2&c", 0, None),
            (Action::Remove, "b=1&c=2&d=3", 2, Some("b=1&c=2")),
            (Action::Remove, "a=1", 0, Some("")),
        ] {
            let rules = [(b"a".to_vec(), change(action))];
            let made = masked_arguments(&rules, written.as_bytes(), most);
            let made = made.map(|made| String::from_utf8_lossy(&made).into_owned());
            assert_eq!(made.as_deref(), expected, "{action:?} {written}");
        }
    }
}
