//! The response: its status, its fields, its body.

use mlua::{Error, Lua, LuaString, Result, Table, Value};
use weir_plugin::Origin;

use super::request::all;
use super::{editable, exchange, may_edit, name_of, text_of, texts};
use crate::call;
use crate::engine::unbounded;
use crate::hook::Hook;

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    fields(lua, raw)?;
    status(lua, raw)?;
    answer(lua, raw)?;
    piece(lua, raw)
}

/// True while there is a response whose head can be seen.
fn has_response() -> bool {
    matches!(call::hook(), Hook::HeaderFilter | Hook::BodyFilter | Hook::Log)
}

fn fields(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "response_header",
        unbounded(lua, |lua, name: LuaString| {
            let Ok(name) = name_of(&name) else { return Ok(None) };
            if !has_response() {
                let name = format!("sent_http_{}", String::from_utf8_lossy(name.text()).replace('-', "_"));
                let name = lua.create_string(name.to_ascii_lowercase())?;
                let value = exchange(|x| super::variable(lua, x.as_request().source(), &name))??;
                return Ok(value.as_string().cloned());
            }
            exchange(|x| {
                let cx = x.as_response();
                let text = String::from_utf8_lossy(name.text()).into_owned();
                cx.response().field_str(&text).map(|value| lua.create_string(value)).transpose()
            })?
        })?,
    )?;
    raw.set(
        "response_headers",
        unbounded(lua, |lua, ()| {
            exchange(|x| {
                let cx = x.as_response();
                let response = cx.response();
                all(lua, response.head.fields.iter(response.buffer.bytes()))
            })?
        })?,
    )?;
    raw.set(
        "set_response_header",
        unbounded(lua, |lua, (name, value): (LuaString, Value)| {
            let values = texts(lua, value)?;
            let name = name_of(&name)?;
            if values.is_none() && name.is_framing() {
                return Ok(());
            }
            let name = may_edit(name)?;
            match call::hook() {
                Hook::HeaderFilter => exchange(|x| {
                    let mut cx = x.as_response();
                    cx.remove_field(&name);
                    values.iter().flatten().for_each(|value| cx.add_field(&name, &value.as_bytes()));
                }),
                Hook::BodyFilter | Hook::Log => Err(Error::runtime("the head of the response has been sent")),
                _ => {
                    let list: Vec<_> = values.unwrap_or_default();
                    if list.len() > 1 {
                        return Err(Error::runtime("before there is a response, a field of it can have one value"));
                    }
                    exchange(|x| {
                        let mut cx = x.as_request();
                        match list.first() {
                            Some(value) => cx.set_response_field(&name, |out| out.extend_from_slice(&value.as_bytes())),
                            None => {
                                cx.unset_response_field(&name);
                            }
                        }
                    })
                }
            }
        })?,
    )?;
    raw.set(
        "add_response_header",
        unbounded(lua, |lua, (name, value): (LuaString, Value)| {
            let values = texts(lua, value)?;
            let name = editable(&name)?;
            match call::hook() {
                Hook::HeaderFilter => exchange(|x| {
                    let mut cx = x.as_response();
                    values.iter().flatten().for_each(|value| cx.add_field(&name, &value.as_bytes()));
                }),
                Hook::BodyFilter | Hook::Log => Err(Error::runtime("the head of the response has been sent")),
                _ => exchange(|x| {
                    let mut cx = x.as_request();
                    for value in values.iter().flatten() {
                        if cx.unset_response_field(&name) {
                            return Err(Error::runtime("before there is a response, a field of it can have one value"));
                        }
                        cx.set_response_field(&name, |out| out.extend_from_slice(&value.as_bytes()));
                    }
                    Ok(())
                })?,
            }
        })?,
    )
}

fn status(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "status",
        lua.create_function(|_, ()| {
            if has_response() {
                return exchange(|x| x.as_response().status());
            }
            Ok(call::with(|call| call.status))
        })?,
    )?;
    raw.set(
        "set_status",
        lua.create_function(|_, status: i64| {
            let status = valid(status)?;
            match call::hook() {
                Hook::HeaderFilter => exchange(|x| x.as_response().set_status(status)),
                Hook::BodyFilter | Hook::Log => Err(Error::runtime("the head of the response has been sent")),
                _ => {
                    call::with(|call| call.status = status);
                    Ok(())
                }
            }
        })?,
    )?;
    raw.set(
        "origin",
        lua.create_function(|_, ()| {
            exchange(|x| match x.as_response().response().origin {
                Origin::Nobody => "nobody",
                Origin::Upstream => "service",
                Origin::Gateway => "exit",
                Origin::Failed(_) => "error",
            })
        })?,
    )
}

fn valid(status: i64) -> Result<u16> {
    u16::try_from(status)
        .ok()
        .filter(|status| (200..=999).contains(status))
        .ok_or_else(|| Error::runtime(format!("expected a status from 200 to 999, found {status}")))
}

fn answer(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "print",
        lua.create_function(|lua, values: mlua::MultiValue| {
            let is_answering = matches!(call::hook(), Hook::Rewrite | Hook::Access);
            if !is_answering {
                return Err(Error::runtime("a script can answer in rewrite and access only"));
            }
            for value in values {
                print(lua, value, 0)?;
            }
            Ok(())
        })?,
    )?;
    raw.set(
        "begin_exit",
        lua.create_function(|_, status: Option<i64>| {
            if !matches!(call::hook(), Hook::Rewrite | Hook::Access) {
                return Err(Error::runtime("a script can answer in rewrite and access only"));
            }
            let status = status.filter(|status| *status != 0).map(valid).transpose()?;
            call::with(|call| {
                call.status = status.unwrap_or(call.status);
                call.exits = true;
            });
            Ok(())
        })?,
    )?;
    raw.set("printed", lua.create_function(|_, ()| Ok(call::with(|call| call.output.len())))?)?;
    raw.set(
        "made_body",
        lua.create_function(|lua, ()| exchange(|x| lua.create_string(&x.as_response().response().body))?)?,
    )?;
    raw.set(
        "replace_body",
        lua.create_function(|_, body: LuaString| {
            let body = body.as_bytes();
            exchange(|x| x.as_response().replace_body(&body))
        })?,
    )
}

/// Prints a value; of a list all of its parts, one behind the other.
fn print(lua: &Lua, value: Value, depth: usize) -> Result<()> {
    match value {
        Value::Table(list) => {
            if depth > 16 {
                return Err(Error::runtime("a list to print is nested too deeply"));
            }
            list.sequence_values::<Value>().try_for_each(|value| print(lua, value?, depth + 1))
        }
        Value::Nil => call::with(|call| call.print(b"nil")),
        Value::LightUserData(_) => call::with(|call| call.print(b"null")),
        other => match text_of(lua, other)? {
            Some(text) => call::with(|call| call.print(&text.as_bytes())),
            None => Ok(()),
        },
    }
}

fn piece(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set("piece", lua.create_function(|lua, ()| call::with(|call| lua.create_string(&call.piece)))?)?;
    raw.set(
        "set_piece",
        lua.create_function(|lua, value: Value| {
            let texts = texts(lua, value)?;
            call::with(|call| {
                call.piece.clear();
                texts.iter().flatten().for_each(|text| call.piece.extend_from_slice(&text.as_bytes()));
            });
            Ok(())
        })?,
    )?;
    raw.set("is_last", lua.create_function(|_, ()| Ok(call::with(|call| call.is_last)))?)
}
