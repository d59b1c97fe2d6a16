//! Schemas of the bodies of requests about developers and applications, for the OpenAPI document.

use serde_json::{Value, json};

/// The schemas by name.
pub(crate) fn body_schemas() -> [(String, Value); 7] {
    let text = json!({ "type": "string" });
    let optional = json!({ "type": ["string", "null"], "description": "null removes it" });
    let flag = json!({ "type": "boolean" });
    let plans = |least: usize| json!({ "type": "array", "minItems": least, "items": { "type": "string" } });
    let id = json!({ "type": "string", "description": "one is made unless told" });
    let most = json!({ "type": "integer", "minimum": 0, "maximum": 1000, "description": "10 unless told" });
    let body = |required: Value, properties: Value| json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let named = |name: &str, schema: Value| (name.to_owned(), schema);
    [
        named(
            "NewDeveloper",
            body(
                json!([]),
                json!({
                    "id": id, "name": text, "desc": text, "email": text, "plans": plans(0), "max_applications": most,
                    "team": { "type": "string", "description": "that of the key unless told" },
                }),
            ),
        ),
        named(
            "DeveloperChange",
            body(
                json!([]),
                json!({
                    "name": optional, "desc": optional, "email": optional, "plans": plans(0),
                    "max_applications": most, "suspended": flag,
                    "renew_token": { "type": "boolean", "description": "true: the token is replaced by a new one" },
                }),
            ),
        ),
        named(
            "NewApplication",
            body(
                json!(["developer", "plans"]),
                json!({ "developer": text, "id": id, "desc": text, "plans": plans(1) }),
            ),
        ),
        named("ApplicationChange", body(json!([]), json!({ "desc": optional, "plans": plans(1), "suspended": flag }))),
        named("NewOwnApplication", body(json!([]), json!({ "desc": text, "plans": plans(1) }))),
        named("NewOwnKey", body(json!([]), json!({ "id": id, "name": text, "desc": text }))),
        named("OwnKeyChange", body(json!([]), json!({ "renew": flag }))),
    ]
}
