//! Fields of Kong's configurations.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

pub(super) fn flag(conf: &Value, field: &str, default: bool) -> bool {
    conf[field].as_bool().unwrap_or(default)
}

pub(super) fn text(conf: &Value, field: &str, default: &str) -> String {
    conf[field].as_str().unwrap_or(default).to_owned()
}

pub(super) fn seconds_of(conf: &Value, field: &str, default: u64) -> u64 {
    conf[field].as_f64().map_or(default, |seconds| seconds.ceil() as u64)
}

pub(super) fn list(conf: &Value, field: &str) -> Vec<Value> {
    conf[field].as_array().cloned().unwrap_or_default()
}

pub(super) fn texts(conf: &Value, field: &str) -> Vec<String> {
    conf[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A value of `request-transformer` with variables in the place of its templates.
///
/// # Errors
/// The template that has no variable.
pub(super) fn without_templates(value: &str) -> Result<String, String> {
    static LOOK_UP: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r#"^(headers|query_params)(?:\.([A-Za-z0-9_]+)|\[["']([A-Za-z0-9_-]+)["']\])$"#).ok()
    });
    let mut made = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("$(") {
        made.push_str(&before.replace('$', "\\$"));
        let (template, behind) = after.split_once(')').ok_or_else(|| format!("the value {value}"))?;
        let found = LOOK_UP.as_ref().and_then(|look_up| look_up.captures(template.trim()));
        let found = found.ok_or_else(|| format!("the template $({template})"))?;
        let name = found.get(2).or(found.get(3)).map(|name| name.as_str()).unwrap_or_default();
        match &found[1] {
            "headers" => made.push_str(&format!("${{http_{}}}", name.to_ascii_lowercase().replace('-', "_"))),
            _ => made.push_str(&format!("${{arg_{name}}}")),
        }
        rest = behind;
    }
    made.push_str(&rest.replace('$', "\\$"));
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::without_templates;

    #[test]
    fn look_ups_become_variables() {
        for (value, expected) in [
            ("plain", Some("plain")),
            ("a$(headers.x_y)b", Some("a${http_x_y}b")),
            (r#"$(headers["x-y"])"#, Some("${http_x_y}")),
            ("$(query_params.q)$", Some("${arg_q}\\$")),
            ("$(uri_captures[1])", None),
            ("$(headers.x or 'y')", None),
            ("$(headers.x", None),
        ] {
            assert_eq!(without_templates(value).ok().as_deref(), expected, "{value}");
        }
    }
}
