//! JSON as lua-cjson reads and writes it.

use mlua::{Error, Lua, LuaString, Result, Table, Value};
use serde_json::{Map, Number};

/// Deepest nesting that is written; what is read has the bound of serde_json, 128.
const DEEPEST: usize = 128;

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set("null", Value::NULL)?;
    let array = lua.create_table()?;
    array.raw_set("__name", "array")?;
    raw.set("array_mt", &array)?;
    raw.set(
        "json_encode",
        lua.create_function({
            let array = array.clone();
            move |lua, value: Value| {
                let json = json_of(&array, &value, 0).map_err(Error::runtime)?;
                lua.create_string(json.to_string())
            }
        })?,
    )?;
    raw.set(
        "json_decode",
        lua.create_function(move |lua, (text, marks_arrays): (LuaString, Option<bool>)| {
            let json: serde_json::Value = serde_json::from_slice(&text.as_bytes())
                .map_err(|error| Error::runtime(format!("invalid JSON: {error}")))?;
            lua_of(lua, (marks_arrays == Some(true)).then_some(&array), json)
        })?,
    )
}

/// The value in Lua of JSON: null is `cjson.null`.
fn lua_of(lua: &Lua, array: Option<&Table>, json: serde_json::Value) -> Result<Value> {
    Ok(match json {
        serde_json::Value::Null => Value::NULL,
        serde_json::Value::Bool(value) => Value::Boolean(value),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Value::String(lua.create_string(text)?),
        serde_json::Value::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(lua_of(lua, array, item)?)?;
            }
            if let Some(array) = array {
                table.set_metatable(Some(array.clone()))?;
            }
            Value::Table(table)
        }
        serde_json::Value::Object(entries) => {
            let table = lua.create_table_with_capacity(0, entries.len())?;
            for (key, value) in entries {
                table.raw_set(key, lua_of(lua, array, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// JSON of a value in Lua. A table is a list where its keys are 1 to n; an empty one is an object, unless it is marked.
fn json_of(array: &Table, value: &Value, depth: usize) -> std::result::Result<serde_json::Value, String> {
    if depth > DEEPEST {
        return Err("Cannot serialise, excessive depth".to_owned());
    }
    Ok(match value {
        Value::Nil => serde_json::Value::Null,
        Value::LightUserData(pointer) if pointer.0.is_null() => serde_json::Value::Null,
        Value::Boolean(value) => (*value).into(),
        Value::Integer(number) => (*number).into(),
        Value::Number(number) => number_of(*number)?,
        Value::String(text) => text.to_string_lossy().into(),
        Value::Table(table) => return table_of(array, table, depth),
        other => return Err(format!("Cannot serialise {}: type not supported", other.type_name())),
    })
}

fn number_of(number: f64) -> std::result::Result<serde_json::Value, String> {
    // Whole numbers up to 2^53 are written without a fraction.
    if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
        return Ok((number as i64).into());
    }
    Number::from_f64(number).map(Into::into).ok_or_else(|| "Cannot serialise number: must not be NaN or Inf".to_owned())
}

fn table_of(array: &Table, table: &Table, depth: usize) -> std::result::Result<serde_json::Value, String> {
    let is_marked = table.metatable().is_some_and(|metatable| metatable == *array);
    let len = table.raw_len();
    let mut items = Vec::with_capacity(len);
    let mut entries = Map::new();
    let fault = |error: mlua::Error| error.to_string();
    for pair in table.pairs::<Value, Value>() {
        let (key, item) = pair.map_err(fault)?;
        match key {
            Value::String(key) => {
                entries.insert(key.to_string_lossy(), json_of(array, &item, depth + 1)?);
            }
            Value::Integer(_) | Value::Number(_) if len > 0 || is_marked => {}
            Value::Integer(number) => {
                entries.insert(number.to_string(), json_of(array, &item, depth + 1)?);
            }
            Value::Number(number) => {
                entries.insert(number.to_string(), json_of(array, &item, depth + 1)?);
            }
            other => return Err(format!("Cannot serialise table: key of type {}", other.type_name())),
        }
    }
    // Lua has another order in each process.
    entries.sort_keys();
    if len == 0 && !is_marked {
        return Ok(entries.into());
    }
    for at in 1..=len {
        let item: Value = table.raw_get(at).map_err(fault)?;
        items.push(json_of(array, &item, depth + 1)?);
    }
    if entries.is_empty() {
        return Ok(items.into());
    }
    // Keys of both kinds: an object.
    for (at, item) in items.into_iter().enumerate() {
        entries.insert((at + 1).to_string(), item);
    }
    Ok(entries.into())
}
