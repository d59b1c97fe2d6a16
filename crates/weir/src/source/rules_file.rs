//! Conversion of the resources of a store to a rules file, and back.

use std::io::{self, Write};

use serde_json::{Map, Value};
use weir_config::{Id, Key as Name, Kind as NodeKind, Node};
use weir_store::{Item, Key, Kind};

/// Writes resources as a rules file in YAML. The order of the resources is kept within each section.
pub(crate) fn write(items: &[Item], mut out: impl Write) -> io::Result<()> {
    let mut sections = Map::new();
    for name in Kind::sections().map(Kind::directory) {
        let own = items.iter().filter(|item| item.key.kind().directory() == name);
        let own: Vec<Value> = own.map(item).collect::<Result<_, _>>()?;
        if !own.is_empty() {
            sections.insert(name.to_owned(), Value::Array(own));
        }
    }
    if !sections.is_empty() {
        let mut options = serde_saphyr::SerializerOptions::default();
        // No folding: a certificate keeps its lines, and every other text is one line.
        options.folded_wrap_chars = usize::MAX;
        serde_saphyr::to_io_writer_with_options(&mut out, &Value::Object(sections), options)
            .map_err(io::Error::other)?;
    }
    out.write_all(b"#END\n")
}

/// A resource as an item of its section, with its id or name first.
fn item(item: &Item) -> io::Result<Value> {
    let value: Value = serde_json::from_str(&item.value)
        .map_err(|error| io::Error::other(format!("{} is no JSON: {error}", item.key)))?;
    let Value::Object(mut fields) = value else {
        return Err(io::Error::other(format!("{} is no JSON object", item.key)));
    };
    let mut whole = Map::new();
    let id_field = item.key.kind().id_field();
    let own = fields.shift_remove(id_field).filter(|_| id_field != "id");
    whole.insert(id_field.to_owned(), own.unwrap_or_else(|| item.key.id().into()));
    whole.append(&mut fields);
    Ok(Value::Object(whole))
}

/// The resources with texts that are taken for variables when the exported file is read.
pub(crate) fn placeholders(items: &[Item]) -> Vec<&Key> {
    items.iter().filter(|item| item.value.contains("${{")).map(|item| &item.key).collect()
}

/// The resources in the tree of a checked rules file. Of two with the same id, the later one takes precedence.
pub(crate) fn resources(root: &Node) -> Vec<(Key, String)> {
    let mut found: Vec<(Key, Value)> = Vec::new();
    for (name, section) in root.as_map().unwrap_or_default() {
        let Some(kind) = Kind::sections().find(|kind| kind.directory() == &*name.text) else { continue };
        match &section.kind {
            NodeKind::Seq(items) => {
                for (place, item) in items.iter().enumerate() {
                    found.extend(from_item(kind, place, item));
                }
            }
            // plugin_metadata may be a mapping from names.
            NodeKind::Map(entries) => {
                found.extend(entries.iter().filter_map(|entry| from_entry(kind, entry)));
            }
            _ => {}
        }
    }
    let mut seen = std::collections::HashSet::new();
    let mut last: Vec<(Key, String)> = found
        .into_iter()
        .rev()
        .filter(|(key, _)| seen.insert(key.clone()))
        .map(|(key, value)| (key, value.to_string()))
        .collect();
    last.reverse();
    last
}

fn from_entry(kind: Kind, (name, conf): &(Name, Node)) -> Option<(Key, Value)> {
    let Value::Object(mut fields) = conf.to_json() else { return None };
    fields.insert("id".to_owned(), (*name.text).into());
    Some((Key::new(kind, &name.text), Value::Object(fields)))
}

/// A resource, and the resources nested in it.
fn from_item(kind: Kind, place: usize, item: &Node) -> Vec<(Key, Value)> {
    let Value::Object(mut fields) = item.to_json() else { return Vec::new() };
    let text = |fields: &Map<String, Value>, name: &str| match fields.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let id = text(&fields, "id");
    if let Some((nested, own)) = kind.nested().and_then(|nested| Some((nested, nested.split_nested(id.as_deref()?)?.1)))
    {
        fields.insert("id".to_owned(), own.into());
        return vec![(Key::new(nested, id.as_deref().unwrap_or_default()), Value::Object(fields))];
    }
    if !matches!(kind, Kind::Consumers | Kind::Credentials) {
        let id = id.unwrap_or_else(|| Id::numbered(place + 1).as_str().to_owned());
        fields.insert("id".to_owned(), id.as_str().into());
        return vec![(Key::new(kind, &id), Value::Object(fields))];
    }
    let Some(username) = text(&fields, "username") else { return Vec::new() };
    fields.shift_remove("id");
    let inner = fields.shift_remove("credentials");
    let mut found = vec![(Key::new(Kind::Consumers, &username), Value::Object(fields))];
    for (place, inner) in inner.as_ref().and_then(Value::as_array).into_iter().flatten().enumerate() {
        let Value::Object(mut fields) = inner.clone() else { continue };
        let id = text(&fields, "id").unwrap_or_else(|| Id::numbered(place + 1).as_str().to_owned());
        fields.insert("id".to_owned(), id.as_str().into());
        found.push((credential(&username, &id), Value::Object(fields)));
    }
    found
}

fn credential(consumer: &str, id: &str) -> Key {
    Key::new(Kind::Credentials, &format!("{consumer}/credentials/{id}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_config::Node;
    use weir_store::{Item, Key};

    use super::{resources, write};

    fn exported(items: &[(&str, Value)]) -> String {
        let item = |(key, value): &(&str, Value)| Item {
            key: key.parse().unwrap(),
            value: value.to_string().into(),
            created: 1,
            modified: 1,
        };
        let mut text = Vec::new();
        write(&items.iter().map(item).collect::<Vec<_>>(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn read(text: &str) -> Vec<(String, Value)> {
        let root = Node::parse(text).unwrap().root;
        let found = resources(&root).into_iter();
        found.map(|(key, value)| (key.to_string(), serde_json::from_str(&value).unwrap())).collect()
    }

    /// Texts that look like something else in YAML, numbers at the ends of their ranges, odd keys.
    #[test]
    fn what_is_exported_is_read_as_it_was() {
        let odd = [
            "",
            " ",
            "a b",
            "yes",
            "no",
            "on",
            "~",
            "null",
            "true",
            "1",
            "1.0",
            "1e3",
            "0x1f",
            "0o17",
            "1_000",
            "-",
            "- a",
            "?",
            ": ",
            "a: b",
            "#c",
            "a #c",
            "'",
            "\"",
            "\\",
            "\t",
            "\n",
            "a\n",
            "a\nb",
            "a\n\nb\n\n",
            " a\n b",
            "\r\n",
            "é",
            "日本",
            "\u{1}",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "😀",
            "%x",
            "@x",
            "`x",
            "&x",
            "*x",
            "!x",
            "|",
            ">",
            "[",
            "{",
            "2024-01-01",
            "12:30:45",
            ".inf",
            ".nan",
            "=",
            "<<",
            "#END",
            "---",
            "...",
            "---\na",
            "a\n...\nb",
            "$env://X",
            "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n",
            &"long ".repeat(60),
        ];
        let texts: Vec<Value> = odd.iter().map(|text| Value::from(*text)).collect();
        let keys: serde_json::Map<String, Value> =
            odd.iter().map(|text| ((*text).to_owned(), json!({"a": *text}))).collect();
        let numbers = json!([0, -1, i64::MAX, i64::MIN, 0.5, -1.5, 1e300, 1e-300, 100.0, true, false, null]);
        let items = [
            ("routes/1", json!({ "id": "1", "texts": texts, "keys": keys, "numbers": numbers, "empty": [{}, []] })),
            ("routes/yes", json!({ "id": "yes", "uri": "/a", "desc": "a\nb\n" })),
        ];
        let text = exported(&items);
        let found = read(&text);
        for ((key, value), (found_key, found_value)) in items.iter().zip(&found) {
            assert_eq!((*key, value), (found_key.as_str(), found_value), "{text}");
        }
        assert_eq!(found.len(), items.len());
        assert!(text.ends_with("#END\n"), "{text}");
    }

    #[test]
    fn items_are_put_where_they_belong() {
        let text = "\
routes: [{uri: /a}, {id: 7, uri: /b}, {id: x, uri: /c}, {id: '7', uri: /d}]
consumers:
  - {username: jack, credentials: [{plugins: {}}, {id: c2, plugins: {}}]}
  - {id: jack/credentials/c3, plugins: {}}
plugin_metadata: {http-logger: {log_format: {}}}
secrets: [{id: vault/1, uri: u}]
plugins: [{name: a}]
#END
";
        let expected = [
            ("routes/arr_1", json!({"uri": "/a", "id": "arr_1"})),
            ("routes/x", json!({"id": "x", "uri": "/c"})),
            ("routes/7", json!({"id": "7", "uri": "/d"})),
            ("consumers/jack", json!({"username": "jack"})),
            ("consumers/jack/credentials/arr_1", json!({"plugins": {}, "id": "arr_1"})),
            ("consumers/jack/credentials/c2", json!({"id": "c2", "plugins": {}})),
            ("consumers/jack/credentials/c3", json!({"id": "c3", "plugins": {}})),
            ("plugin_metadata/http-logger", json!({"log_format": {}, "id": "http-logger"})),
            ("secrets/vault/1", json!({"id": "vault/1", "uri": "u"})),
        ];
        let found = read(text);
        for ((key, value), (found_key, found_value)) in expected.iter().zip(&found) {
            assert_eq!((*key, value), (found_key.as_str(), found_value));
            assert!(key.parse::<Key>().is_ok(), "{key}");
        }
        assert_eq!(found.len(), expected.len());
        // A second round does not change the resources.
        let items: Vec<(&str, Value)> = found.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let again = exported(&items);
        let items = read(&again);
        let items: Vec<(&str, Value)> = items.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        assert_eq!(exported(&items), again);
    }
}
