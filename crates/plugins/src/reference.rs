//! The reference pages of the plugins, from their definitions.
//!
//! `docs/plugins/` holds these texts; a test holds the two together.

use std::fmt::Write;

use schemars::Schema;
use serde_json::Value;
use weir_config::schema::Checker;
use weir_plugin::host::Definition;

/// All pages: file name and text, the list of plugins first.
#[must_use]
pub fn pages() -> Vec<(String, String)> {
    let definitions = crate::definitions();
    let mut all = vec![("README.md".to_owned(), list(definitions))];
    all.extend(definitions.iter().map(|definition| (format!("{}.md", definition.name()), page(*definition))));
    all
}

const GENERATED: &str =
    "<!-- Generated from the definitions in crates/plugins. Do not edit: UPDATE_DOCS=1 cargo test -p weir-plugins -->";

fn list(definitions: &[&dyn Definition]) -> String {
    let mut page = format!(
        "# Plugins\n\n{GENERATED}\n\nIn every phase global rules run first, then the route's plugins, from high priority to \
         low. Every configuration may have a `_meta`, see [configuration](../configuration.md#plugins).\n\n\
         | plugin | priority | phases | |\n|---|---|---|---|\n"
    );
    let mut sorted = definitions.to_vec();
    sorted.sort_by_key(|definition| std::cmp::Reverse(definition.priority()));
    for definition in sorted {
        let (name, priority) = (definition.name(), definition.priority());
        let doc = definition.doc();
        let summary =
            [". ", ".\n"].iter().filter_map(|end| doc.find(end)).min().and_then(|end| doc.get(..=end)).unwrap_or(doc);
        let _ = writeln!(page, "| [{name}]({name}.md) | {priority} | {} | {summary} |", phases(definition));
    }
    page
}

fn phases(definition: &dyn Definition) -> String {
    definition.phases().names().join(", ")
}

/// One plugin's page.
fn page(definition: &dyn Definition) -> String {
    let name = definition.name();
    let mut page = format!("# {name}\n\n{GENERATED}\n\n{}\n\n", definition.doc());
    let _ = writeln!(page, "Priority {}; phases: {}.", definition.priority(), phases(definition));
    page.push_str("\n## Configuration\n");
    table(&mut page, &definition.schema());
    if let Some(schema) = definition.consumer_schema() {
        page.push_str("\n## Configuration of a consumer or credential\n");
        table(&mut page, &schema);
    }
    page.push_str("\n## Example\n\n```yaml\nplugins:\n");
    let _ = writeln!(page, "  {name}:");
    for line in definition.example().lines() {
        let _ = writeln!(page, "    {line}");
    }
    let _ = writeln!(page, "```\n\nA whole file: [examples/plugins/{name}.yaml](../../examples/plugins/{name}.yaml).");
    page
}

fn table(page: &mut String, schema: &Schema) {
    page.push_str("\n| field | value | default | meaning |\n|---|---|---|---|\n");
    rows(page, schema.as_value(), "");
}

/// The fields of a mapping; those of mappings inside follow, with their path.
fn rows(page: &mut String, schema: &Value, path: &str) {
    let required: Vec<&str> = list_of(schema, "required").filter_map(Value::as_str).collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let default = match field.get("default") {
            Some(value) => show(value),
            None if required.contains(&name.as_str()) => "required".into(),
            None => String::new(),
        };
        row(page, [&format!("`{place}`"), &expectation(field), &default, &description(field)]);
        rows(page, field, &place);
        for branch in list_of(field, "anyOf") {
            rows(page, branch, &place);
        }
        if let Some(items) = field.get("items") {
            rows(page, items, &format!("{place}[]"));
        }
    }
}

fn list_of<'a>(schema: &'a Value, keyword: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn row(page: &mut String, cells: [&str; 4]) {
    page.push('|');
    for cell in cells {
        let _ = write!(page, " {} |", cell.replace('|', "\\|").trim());
    }
    page.push('\n');
}

/// The expected value, in the words of an error.
fn expectation(schema: &Value) -> String {
    // Every branch that is a mapping is one in the same words.
    if list_of(schema, "anyOf").count() > 1
        && list_of(schema, "anyOf").all(|b| b.get("type").is_some_and(|t| t == "object"))
    {
        return "a mapping".into();
    }
    let text = Schema::try_from(schema.clone()).map(|schema| Checker::new(&schema).expectation()).unwrap_or_default();
    let inner = match (schema.get("items"), schema.get("additionalProperties")) {
        (Some(items), _) if items.get("properties").is_none() => format!(", each {}", expectation(items)),
        (_, Some(each)) if each.is_object() => format!(" to {}", expectation(each)),
        _ => String::new(),
    };
    text + &inner
}

/// The doc comment, on one line, with those of the choices.
fn description(schema: &Value) -> String {
    let one_line = |schema: &Value| {
        let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut text = one_line(schema);
    for choice in list_of(schema, "oneOf") {
        if let (Some(name), Some(_)) = (choice.get("const").and_then(Value::as_str), choice.get("description")) {
            let _ = write!(text, " `{name}`: {}", one_line(choice));
        }
    }
    text
}

fn show(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Object(fields) if fields.is_empty() => "none".into(),
        Value::String(text) if text.is_empty() => "empty".into(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}
