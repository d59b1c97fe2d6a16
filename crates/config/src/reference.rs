//! The reference page of the configuration, from the types.
//!
//! `docs/configuration.md` is this text; a test holds the two together.

use std::fmt::Write;

use schemars::{JsonSchema, Schema};
use serde_json::Value;

use crate::kind::{ResourceKind, with_type};
use crate::resource::Meta;
use crate::schema::{Checker, json_schema};
use crate::settings::apisix::{Effect, KEYS};
use crate::settings::{Settings, leaves};
use crate::unsupported::{Owner, UNSUPPORTED, When};

/// The page, in Markdown.
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for kind in ResourceKind::ranked() {
        match kind {
            ResourceKind::PluginMetadata => page.push_str(PLUGIN_METADATA),
            _ => with_type!(*kind, T => resource::<T>(&mut page, kind.plural()), else ()),
        }
        if *kind == ResourceKind::Upstreams {
            page.push_str(NODES);
        }
    }
    page.push_str(PLUGINS);
    rows(&mut page, json_schema::<Meta>().as_value(), "");
    unsupported(&mut page);
    page.push_str(SETTINGS);
    settings(&mut page);
    page
}

/// The page about APISIX's own `config.yaml`.
pub fn config_yaml() -> String {
    let mut page = String::from(CONFIG_YAML);
    for row in KEYS {
        let effect = match row.effect {
            Effect::Sets(settings, _) => settings.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            Effect::Always(value) => format!("`{value}` is how it is; else none"),
            Effect::Nothing => "none".to_owned(),
        };
        self::row(&mut page, &[&format!("`{}`", row.path), &effect, row.note]);
    }
    page
}

const CONFIG_YAML: &str = "\
# APISIX's config.yaml

<!-- Generated from the table in crates/config. Do not edit: UPDATE_DOCS=1 cargo test -p weir-config -->

`--settings` accepts APISIX's own `config.yaml` in place of a `weir.yaml`, and distinguishes the two by their sections:
`apisix`, `nginx_config`, `plugin_attr` and `deployment` are those of a `config.yaml`. A file that mixes both kinds is
refused.

```sh
weir check apisix.yaml --settings config.yaml
```

- A key either takes effect or is named at start, with the reason why it has none. `weir check` prints the same list.
  An invalid value is an error, which names the key as in the file.
- Keys missing from the file keep this gateway's own defaults ([configuration](configuration.md#settings)), which are not
  always APISIX's.
- Flags and `WEIR_` variables take precedence over the file, as over a `weir.yaml`. `${{NAME}}` and `${{NAME:=default}}` are replaced
  by variables of the environment.
- Relative paths begin at the working directory of the process; APISIX's begin in its own folder.

| key | sets | note |
|---|---|---|
";

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the types in crates/config. Do not edit: UPDATE_DOCS=1 cargo test -p weir-config -->

The gateway reads two files: the **rules file** (routes, plugins, upstreams) and, if the defaults do not fit, the
**settings file** `weir.yaml` (listeners, limits, logs).

# Rules

YAML or JSON, in the resource model of Apache APISIX. A YAML file should end with the line `#END`, so that a file that
is still being written is not taken for complete; without it there is a warning, and with `strict` the file is refused. An
empty file is always refused: a file without any route contains `routes: []`. For changes of the file while the gateway
runs see [operations](operations.md#changing-the-rules).

- Every list below may be missing, empty or null. An item without an `id` is called `arr_<n>`, n being its place in the
  list, from 1. Of two items with one id the later one takes effect. A key that stands twice in one mapping is an error.
- Ids are texts or whole numbers, and so are references to them.
- `${{NAME}}` and `${{NAME:=default}}` are replaced by the environment variable before the file is read, wherever they
  stand. A variable that is not set and has no default is an error, except in a comment. `${NAME}` is left as it is.
- `$env://NAME` and `$env://NAME/key` (a key of a variable that holds JSON) stand for a whole text in a plugin's
  configuration, in `ssls` and for the client certificate of an upstream, and so does `$secret://MANAGER/ID/KEY`
  ([secrets](secrets.md)).
- An unknown field is an error. Where APISIX accepts any field it is a warning: in a plugin's configuration, and in
  `timeout`, `keepalive_pool` and `checks`, but there a name close to that of a known field is an error.
- By default one invalid item refuses the whole file, and the configuration before it stays. With `--invalid-items skip`
  the item alone is left out, together with the items that refer to it. A route that is left out keeps its place: its
  requests are answered 503, and no other route takes them. A certificate that verifies clients keeps its names, whose handshakes are
  refused. The file is refused where such a place is invalid itself (the paths, hosts or priority of a route, the names of such
  a certificate), and for an invalid global rule, which may guard everything.
- A file has at most 256 MiB; lists and mappings are nested at most 128 deep; YAML aliases stand for at most 1,000,000
  values.
";

const NODES: &str = "
The nodes of an upstream are a mapping from `HOST:PORT` to weight, or a list of mappings with `host`, `port`, `weight`
and, for people, `metadata`. A weight is an integer from 0 to 4294967295; a node of weight 0 gets no request. An IPv6
address stands in brackets. The default port is that of the scheme. A node on a Unix socket is `unix:/PATH`
([listeners](listeners.md#nodes-on-unix-sockets)).

```yaml
upstreams:
  - id: backend
    nodes:
      \"10.0.0.1:8080\": 3
      \"[fd00::1]:8080\": 1
```
";

const PLUGIN_METADATA: &str = "
## plugin_metadata

Settings of a plugin that hold wherever it is used: a list of mappings whose `id` is the name of the plugin, with the
fields that the plugin knows. A mapping from plugin names is taken as well, with a warning.
";

const PLUGINS: &str = "
## plugins

A mapping from plugin names to their configurations; each plugin has a page of its own. Of several places that
configure one plugin for a request the most specific one takes precedence, as a whole: consumer, consumer group, route, plugin
config, service. Global rules run separately and first. Every configuration may have `_meta`:
";

const SETTINGS: &str = "
# Settings

`weir.yaml`, given with `--settings`. Every setting has a default and an environment variable. Variables take precedence
over the file, and flags over both. In a variable the elements of a list are separated by commas. A variable that begins
with `WEIR_` and is no setting is an error.

Sizes are bytes, or a text with a unit: `64KiB`, `1MiB`. Times are seconds, decimals allowed, or a text with a unit:
`500ms`, `5s`, `2m`, `1h`.
";

fn resource<T: JsonSchema>(page: &mut String, section: &str) {
    let schema = json_schema::<T>();
    let _ = write!(page, "\n## {section}\n\n{}\n", description(schema.as_value()));
    rows(page, schema.as_value(), "");
}

/// A table of the fields of a mapping; those of an inner mapping follow it, with their path.
fn rows(page: &mut String, schema: &Value, path: &str) {
    if path.is_empty() {
        page.push_str("\n| field | value | default | meaning |\n|---|---|---|---|\n");
    }
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let default = match field.get("default") {
            Some(value) => show(value),
            None if required.contains(&name.as_str()) => "required".into(),
            None => String::new(),
        };
        let linked = match name.as_str() {
            "plugins" => Some("a mapping, see [plugins](#plugins)"),
            "upstream" => Some("a mapping, see [upstreams](#upstreams)"),
            "credentials" => Some("a list, see [credentials](#credentials)"),
            _ => None,
        };
        let value = linked.map_or_else(|| expectation(field), str::to_owned);
        row(page, &[&format!("`{place}`"), &value, &default, &description(field)]);
        if linked.is_none() {
            rows(page, field, &place);
        }
    }
}

fn settings(page: &mut String) {
    let defaults = serde_json::to_value(Settings::default()).unwrap_or_default();
    let schema = json_schema::<Settings>();
    let mut group = None;
    let group_of = |path: &'static str| path.split_once('.').map(|(group, _)| group);
    // Settings outside of groups come first.
    let (alone, grouped): (Vec<_>, Vec<_>) = leaves().iter().partition(|leaf| group_of(&leaf.path).is_none());
    for leaf in alone.into_iter().chain(grouped) {
        let name = group_of(&leaf.path);
        if name != group || page.ends_with("`1h`.\n") {
            let title = name.unwrap_or("The gateway");
            let about = name.and_then(|name| schema.pointer(&format!("/properties/{name}"))).map(description);
            let _ = write!(page, "\n## {title}\n\n");
            if let Some(about) = about {
                let _ = write!(page, "{about}\n\n");
            }
            page.push_str("| setting | value | default | meaning |\n|---|---|---|---|\n");
            group = name;
        }
        let default = defaults.pointer(&format!("/{}", leaf.path.replace('.', "/"))).map(show).unwrap_or_default();
        let name = format!("`{}` `{}`", leaf.path, leaf.variable);
        row(page, &[&name, &expectation(&leaf.schema), &default, &description(&leaf.schema)]);
    }
}

fn unsupported(page: &mut String) {
    page.push_str("\n## Not supported yet\n\nThese fields of APISIX are refused by name, never ignored.\n\n");
    page.push_str("| in | field | feature |\n|---|---|---|\n");
    for entry in UNSUPPORTED {
        let place = match entry.owner {
            Owner::StreamRoute => "a stream route",
            Owner::Upstream => "an upstream",
        };
        let field = match entry.when {
            When::Present => format!("`{}`", entry.field),
            When::OneOf(values) => format!("`{}`: {}", entry.field, values.join(", ")),
        };
        row(page, &[place, &field, entry.feature]);
    }
    row(page, &["secrets", "`aws/…`, `gcp/…`", "AWS Secrets Manager, Google Cloud Secret Manager"]);
}

fn row(page: &mut String, cells: &[&str]) {
    page.push('|');
    for cell in cells {
        let cell = cell.replace('|', "\\|");
        let _ = write!(page, " {} |", cell.trim());
    }
    page.push('\n');
}

/// Expectation of a value, in the words of an error.
fn expectation(schema: &Value) -> String {
    let element = schema.get("items").map(|items| format!(", each {}", expectation(items))).unwrap_or_default();
    let element = match schema.get("additionalProperties") {
        Some(each) if each.is_object() && schema.get("x-expected").is_none() => {
            format!("{element} to {}", expectation(each))
        }
        _ => element,
    };
    let text = match Schema::try_from(schema.clone()) {
        Ok(schema) => Checker::new(&schema).expectation(),
        Err(_) => String::new(),
    };
    text + &element
}

/// The doc comment of a type or a field, on one line.
fn description(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for choice in schema.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
        if let (Some(name), Some(meaning)) = (choice.get("const").and_then(Value::as_str), choice.get("description")) {
            let _ = write!(text, " `{name}`: {}", meaning.as_str().unwrap_or_default().replace('\n', " "));
        }
    }
    text
}

fn show(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => items.iter().map(show).collect::<Vec<_>>().join(", "),
        Value::Object(fields) if fields.is_empty() => "none".into(),
        Value::String(text) if text.is_empty() => "empty".into(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}
