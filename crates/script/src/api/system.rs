//! The gateway around a script: its log, clocks, modules, and the state of the call.

use std::time::{SystemTime, UNIX_EPOCH};

use mlua::{Error, Lua, LuaString, Result, Table};
use weir_plugin::HookCx;

use crate::call;
use crate::context::lent_context;
use crate::engine::unbounded;
use crate::options::options;

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set("context", unbounded(lua, |lua, ()| lent_context(lua))?)?;
    raw.set("phase", lua.create_function(|_, ()| Ok(call::hook().name()))?)?;
    raw.set("may_wait", lua.create_function(|_, ()| Ok(call::hook().may_wait()))?)?;
    raw.set("is_ending", lua.create_function(|_, ()| Ok(call::is_ending()))?)?;
    raw.set("spend", lua.create_function(|_, instructions: f64| call::spend(instructions as u64))?)?;
    raw.set(
        "log",
        lua.create_function(|_, (level, text): (i64, LuaString)| {
            let text = text.to_string_lossy();
            // Levels as in nginx: 0 is stderr, 4 an error, 8 for debugging.
            match level {
                ..=4 => tracing::error!("lua: {text}"),
                5 => tracing::warn!("lua: {text}"),
                6 | 7 => tracing::info!("lua: {text}"),
                _ => tracing::debug!("lua: {text}"),
            }
            Ok(())
        })?,
    )?;
    raw.set(
        "now",
        lua.create_function(|_, ()| {
            Ok(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0))
        })?,
    )?;
    raw.set(
        "request_start",
        lua.create_function(|_, ()| super::exchange(|x| x.as_request().unix_ms() as f64 / 1000.0))?,
    )?;
    raw.set(
        "milliseconds",
        lua.create_function(|_, ()| {
            super::exchange(|x| {
                let cx = x.as_request();
                let view = cx.view();
                (view.duration() / 1000, view.upstream_us().map(|us| us / 1000))
            })
        })?,
    )?;
    raw.set(
        "check_schema",
        lua.create_function(|_, (schema, conf): (LuaString, LuaString)| {
            Ok(check_schema(&schema.as_bytes(), &conf.as_bytes()).err())
        })?,
    )?;
    raw.set("pid", lua.create_function(|_, ()| Ok(std::process::id()))?)?;
    raw.set("find_module", lua.create_function(|lua, name: String| find_module(lua, &name))?)?;
    let allowed = options().allowed;
    raw.set("allows_environment", allowed.environment)?;
    raw.set("allows_files", allowed.files)?;
    raw.set("allows_processes", allowed.processes)
}

/// The text of a module in the folders for scripts, and its path.
fn find_module(lua: &Lua, name: &str) -> Result<(Option<LuaString>, Option<String>)> {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if !name.split(['.', '/']).all(is_part) {
        return Ok((None, None));
    }
    let relative = name.replace('.', "/");
    for folder in &options().folders {
        for path in [folder.join(format!("{relative}.lua")), folder.join(&relative).join("init.lua")] {
            match std::fs::read(&path) {
                Ok(text) => return Ok((Some(lua.create_string(text)?), Some(path.display().to_string()))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::runtime(format!("{}: {error}", path.display()))),
            }
        }
    }
    Ok((None, None))
}

/// Checks a value against a JSON Schema: the fault in it.
fn check_schema(schema: &[u8], value: &[u8]) -> std::result::Result<(), String> {
    let schema: serde_json::Value = serde_json::from_slice(schema).map_err(|error| error.to_string())?;
    let value: serde_json::Value = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    let validator =
        jsonschema::validator_for(&schema).map_err(|error| format!("the schema is no JSON Schema: {error}"))?;
    validator.validate(&value).map_err(|error| match error.instance_path().as_str() {
        "" => error.to_string(),
        path => format!("property {path} validation failed: {error}"),
    })
}
