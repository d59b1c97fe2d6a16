//! PATCH: a value laid over another, or put into a place of it.

use serde_json::{Map, Value};

/// Lays `change` over `target`: mappings are merged, null takes a key away, everything else is replaced.
pub(crate) fn merge(target: &mut Map<String, Value>, change: Map<String, Value>) {
    for (name, value) in change {
        match (target.get_mut(&name), value) {
            (_, Value::Null) => {
                target.shift_remove(&name);
            }
            (Some(Value::Object(inner)), Value::Object(change)) => merge(inner, change),
            (_, Value::Object(change)) => {
                // A null within it deletes nothing, since nothing was there.
                let mut inner = Map::new();
                merge(&mut inner, change);
                target.insert(name, Value::Object(inner));
            }
            (_, value) => {
                target.insert(name, value);
            }
        }
    }
}

/// Puts a value in the place of what the steps lead to, null takes it away. Mappings on the way are made where there
/// are none.
///
/// # Errors
/// A step leads through something that is no mapping: the path to there.
pub(crate) fn put(target: &mut Map<String, Value>, steps: &[String], value: Value) -> Result<(), String> {
    let Some((last, way)) = steps.split_last() else { return Err("/".to_owned()) };
    let mut place = target;
    for (at, step) in way.iter().enumerate() {
        let next = place.entry(step.clone()).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(inner) = next else { return Err(format!("/{}", steps[..=at].join("/"))) };
        place = inner;
    }
    match value {
        Value::Null => {
            place.shift_remove(last);
        }
        value => {
            place.insert(last.clone(), value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    fn map(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn values_are_merged() {
        let cases = [
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (json!({"a": {"x": 1, "y": 2}}), json!({"a": {"y": null, "z": 3}}), json!({"a": {"x": 1, "z": 3}})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": {"d": null}}}), json!({"a": {"c": {}}})),
            (json!({"a": {"b": 1}}), json!({"a": 5}), json!({"a": 5})),
            (json!({"a": 1}), json!({"a": null, "n": null}), json!({})),
        ];
        for (target, change, expected) in cases {
            let mut merged = map(target.clone());
            super::merge(&mut merged, map(change.clone()));
            assert_eq!(Value::Object(merged), expected, "{change} over {target}");
        }
    }

    #[test]
    fn values_are_put_in_their_place() {
        let cases = [
            ("desc", json!("e"), Ok(json!({"desc": "e", "up": {"nodes": {"a:1": 1}}, "uris": ["/a"]}))),
            ("up/nodes", json!({"b:1": 1}), Ok(json!({"desc": "d", "up": {"nodes": {"b:1": 1}}, "uris": ["/a"]}))),
            ("up/nodes/b:1", json!(2), Ok(json!({"desc": "d", "up": {"nodes": {"a:1": 1, "b:1": 2}}, "uris": ["/a"]}))),
            (
                "up/tls/verify",
                json!(true),
                Ok(json!({"desc": "d", "up": {"nodes": {"a:1": 1}, "tls": {"verify": true}}, "uris": ["/a"]})),
            ),
            ("up", json!(null), Ok(json!({"desc": "d", "uris": ["/a"]}))),
            ("desc/x", json!(1), Err("/desc")),
            ("uris/0", json!("/b"), Err("/uris")),
            ("up/nodes/a:1/x", json!(1), Err("/up/nodes/a:1")),
        ];
        for (path, value, expected) in cases {
            let mut target = map(json!({"desc": "d", "up": {"nodes": {"a:1": 1}}, "uris": ["/a"]}));
            let steps: Vec<String> = path.split('/').map(str::to_owned).collect();
            let done = super::put(&mut target, &steps, value).map(|()| Value::Object(target));
            assert_eq!(done, expected.map_err(str::to_owned), "{path}");
        }
    }
}
