//! Functions of the gateway that the Lua in `lua/` is written over. None calls back into Lua while it looks at the
//! exchange.

mod digest;
mod json;
mod regex;
mod request;
mod response;
mod system;
mod text;
mod token;
mod variables;

use mlua::{Error, Lua, LuaString, Result, Table};
use weir_plugin::{Lent, lent};
use weir_wire::name::{FieldName, Known};

pub(crate) use variables::variable;

use crate::call;

/// All functions, by name.
pub(crate) fn functions(lua: &Lua) -> Result<Table> {
    let raw = lua.create_table()?;
    request::add(lua, &raw)?;
    response::add(lua, &raw)?;
    variables::add(lua, &raw)?;
    json::add(lua, &raw)?;
    regex::add(lua, &raw)?;
    crate::pattern::add(lua, &raw)?;
    text::add(lua, &raw)?;
    digest::add(lua, &raw)?;
    token::add(lua, &raw)?;
    system::add(lua, &raw)?;
    Ok(raw)
}

/// Looks at the exchange of the call.
fn exchange<R>(look: impl FnOnce(&mut Lent<'_>) -> R) -> Result<R> {
    lent(look).ok_or_else(|| Error::runtime("there is no request here"))
}

/// A field name that a script may use, with `-` for each `_`, as in OpenResty.
fn name_of(text: &LuaString) -> Result<FieldName> {
    let text = text.as_bytes();
    let mut text = String::from_utf8_lossy(&text);
    if text.contains('_') {
        text = text.replace('_', "-").into();
    }
    FieldName::new(&text).ok_or_else(|| Error::runtime(format!("expected the name of a field, found {text:?}")))
}

/// A field name that a script may change: what frames a message or belongs to a connection is the gateway's own.
pub(crate) fn editable(text: &LuaString) -> Result<FieldName> {
    may_edit(name_of(text)?)
}

/// The name, if a script may change the field.
fn may_edit(name: FieldName) -> Result<FieldName> {
    if name.is_framing() || name.id() == Known::Host {
        let text = String::from_utf8_lossy(name.text()).into_owned();
        return Err(Error::runtime(format!("{text} is decided by the gateway")));
    }
    Ok(name)
}

/// Spends an instruction for each byte that the exchange keeps, outside of the memory of the interpreter.
fn keep(text: &LuaString) -> Result<()> {
    call::spend_few(text.as_bytes().len() as u64)
}

/// The texts of a value for fields: one, or a list of them; numbers and booleans as Lua prints them. `None` for nil.
fn texts(lua: &Lua, value: mlua::Value) -> Result<Option<Vec<LuaString>>> {
    match value {
        mlua::Value::Nil => Ok(None),
        mlua::Value::Table(list) => {
            let mut texts = Vec::new();
            for item in list.sequence_values::<mlua::Value>() {
                let text = text_of(lua, item?)?;
                text.iter().try_for_each(keep)?;
                texts.extend(text);
            }
            Ok(Some(texts))
        }
        other => {
            let text = text_of(lua, other)?;
            text.iter().try_for_each(keep)?;
            Ok(Some(text.into_iter().collect()))
        }
    }
}

fn text_of(lua: &Lua, value: mlua::Value) -> Result<Option<LuaString>> {
    match value {
        mlua::Value::Boolean(value) => lua.create_string(if value { "true" } else { "false" }).map(Some),
        mlua::Value::Nil => Ok(None),
        other => lua
            .coerce_string(other.clone())?
            .map(Some)
            .ok_or_else(|| Error::runtime(format!("expected a text or a number, found a {}", other.type_name()))),
    }
}
