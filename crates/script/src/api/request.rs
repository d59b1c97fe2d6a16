//! The request: its fields, its target, its body, and who has sent it.

use mlua::{Error, Lua, LuaString, Result, Table, Value};
use weir_plugin::HookCx;
use weir_wire::method::Method;
use weir_wire::name::Known;
use weir_wire::query::Argument;

use super::{editable, exchange, keep, may_edit, name_of, texts};
use crate::call;
use crate::engine::unbounded;
use crate::hook::Identity;

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    fields(lua, raw)?;
    target(lua, raw)?;
    body(lua, raw)?;
    consumer(lua, raw)
}

fn fields(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "header",
        unbounded(lua, |lua, name: LuaString| {
            let Ok(name) = name_of(&name) else { return Ok(None) };
            exchange(|x| x.as_request().request().field(&name).map(|value| lua.create_string(value)).transpose())?
        })?,
    )?;
    raw.set(
        "headers",
        unbounded(lua, |lua, ()| {
            exchange(|x| {
                let cx = x.as_request();
                let request = cx.request();
                all(lua, request.head.fields.iter(request.buffer.bytes()))
            })?
        })?,
    )?;
    raw.set(
        "set_header",
        unbounded(lua, |lua, (name, value): (LuaString, Value)| {
            let values = texts(lua, value)?;
            let name = name_of(&name)?;
            if name.id() == Known::Host {
                return set_host(values.as_deref().and_then(|values| values.first()));
            }
            // Of what frames the message nothing is left to remove.
            if values.is_none() && name.is_framing() {
                return Ok(());
            }
            let name = may_edit(name)?;
            exchange(|x| {
                let mut cx = x.as_request();
                let request = cx.request_mut();
                let mut values = values.iter().flatten();
                match values.next() {
                    None => request.remove_field(&name),
                    Some(first) => request.set_field(&name, &first.as_bytes()),
                }
                values.for_each(|value| request.add_field(&name, &value.as_bytes()));
            })
        })?,
    )?;
    raw.set(
        "add_header",
        unbounded(lua, |lua, (name, value): (LuaString, Value)| {
            let values = texts(lua, value)?;
            let name = editable(&name)?;
            exchange(|x| {
                let mut cx = x.as_request();
                let request = cx.request_mut();
                values.iter().flatten().for_each(|value| request.add_field(&name, &value.as_bytes()));
            })
        })?,
    )
}

/// Fields by their names in lower case; several of one name are a list.
pub(super) fn all<'f>(lua: &Lua, fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> Result<Table> {
    let table = lua.create_table()?;
    for (name, value) in fields {
        put(lua, &table, &lua.create_string(name.to_ascii_lowercase())?, Value::String(lua.create_string(value)?))?;
    }
    Ok(table)
}

/// Adds a value under a name, where a second one makes a list.
fn put(lua: &Lua, table: &Table, name: &LuaString, value: Value) -> Result<()> {
    match table.raw_get::<Value>(name)? {
        Value::Nil => table.raw_set(name, value),
        Value::Table(list) => list.raw_push(value),
        first => table.raw_set(name, lua.create_sequence_from([first, value])?),
    }
}

/// Sets the Host that the node receives.
fn set_host(host: Option<&LuaString>) -> Result<()> {
    let Some(host) = host else { return Err(Error::runtime("a request cannot be without a Host")) };
    let host = host.as_bytes();
    if weir_wire::authority::parse(&host).is_err() {
        return Err(Error::runtime("expected a host, perhaps with a port"));
    }
    exchange(|x| {
        let mut cx = x.as_request();
        cx.request_mut().upstream.set_host(&host);
    })
}

fn target(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "args",
        unbounded(lua, |lua, ()| {
            exchange(|x| {
                let table = lua.create_table()?;
                for (name, value) in x.as_request().request().arguments() {
                    let value = match value {
                        Argument::Flag => Value::Boolean(true),
                        Argument::Value(value) => Value::String(lua.create_string(value)?),
                    };
                    put(lua, &table, &lua.create_string(name)?, value)?;
                }
                Ok(table)
            })?
        })?,
    )?;
    raw.set(
        "set_query",
        lua.create_function(|_, query: LuaString| {
            keep(&query)?;
            let query = query.as_bytes();
            if query.iter().any(|byte| !(0x21..=0x7e).contains(byte) || *byte == b'#') {
                return Err(Error::runtime("expected a query that is encoded"));
            }
            exchange(|x| {
                let mut cx = x.as_request();
                let request = cx.request_mut();
                request.set_query(&query);
                let target = &mut request.upstream.target;
                if !target.is_empty() {
                    let path = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
                    target.truncate(path);
                    if !query.is_empty() {
                        target.push(b'?');
                        target.extend_from_slice(&query);
                    }
                }
            })
        })?,
    )?;
    raw.set(
        "upstream_target",
        lua.create_function(|lua, ()| {
            exchange(|x| {
                let mut target = Vec::new();
                x.as_request().request().write_upstream_target(&mut target);
                lua.create_string(target)
            })?
        })?,
    )?;
    raw.set(
        "set_upstream_target",
        lua.create_function(|_, target: LuaString| {
            let target = target.as_bytes();
            if target.first() != Some(&b'/') || target.iter().any(|byte| !(0x21..=0x7e).contains(byte) || *byte == b'#')
            {
                return Err(Error::runtime("expected an encoded path that begins with /, perhaps with a query"));
            }
            exchange(|x| {
                let mut cx = x.as_request();
                let upstream = &mut cx.request_mut().upstream;
                upstream.target.clear();
                upstream.target.extend_from_slice(&target);
            })
        })?,
    )?;
    raw.set(
        "set_method",
        lua.create_function(|_, name: LuaString| match Method::parse(&name.as_bytes()) {
            Method::Other | Method::Connect => {
                Err(Error::runtime(format!("a request cannot get the method {}", name.to_string_lossy())))
            }
            method => exchange(|x| x.as_request().request_mut().upstream.method = Some(method)),
        })?,
    )
}

fn body(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "body",
        lua.create_function(|lua, ()| {
            exchange(|x| x.as_request().body().map(|body| lua.create_string(body)).transpose())?
        })?,
    )?;
    raw.set("has_body", lua.create_function(|_, ()| exchange(|x| x.as_request().body().is_some()))?)?;
    raw.set(
        "set_body",
        lua.create_function(|_, body: LuaString| {
            let body = body.as_bytes();
            exchange(|x| x.as_request().replace_body(&body))
        })?,
    )
}

fn consumer(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "consumer",
        lua.create_function(|lua, ()| {
            exchange(|x| {
                let cx = x.as_request();
                let view = cx.view();
                let Some(consumer) = view.consumer() else { return Ok(None) };
                let table = lua.create_table()?;
                let name = &*consumer.name.text;
                let identity = call::with(|call| call.identify).and_then(|identify| identify(&cx));
                let identity = identity.unwrap_or_else(|| Identity {
                    id: name.to_owned(),
                    username: Some(name.to_owned()),
                    custom_id: consumer.custom_id().map(str::to_owned),
                });
                table.raw_set("consumer_name", name)?;
                table.raw_set("id", identity.id)?;
                table.raw_set("username", identity.username)?;
                table.raw_set("custom_id", identity.custom_id)?;
                if let Some(id) = consumer.group_id.as_deref() {
                    table.raw_set("group_id", id)?;
                }
                let labels = lua.create_table()?;
                for (name, value) in consumer.labels() {
                    labels.raw_set(&**name, &**value)?;
                }
                table.raw_set("labels", labels)?;
                let credential = view.caller().and_then(|who| view.tables()?.consumers.credential(who));
                if let Some(id) = credential {
                    table.raw_set("credential_id", id)?;
                }
                Ok(Some(table))
            })?
        })?,
    )
}
