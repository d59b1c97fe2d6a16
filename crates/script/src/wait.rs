//! Things that a script waits for: the body of the request, time, and the answers of services.

use std::time::Duration;

use mlua::{Error, IntoLuaMulti, LuaString, MultiValue, Result, Table, Value};
use weir_plugin::{Callout, Flow, Io};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::engine::Engine;
use crate::services::Services;

/// Longest time that a script may sleep.
const LONGEST_SLEEP: f64 = 3600.0;

/// The wish of a coroutine that has yielded, and what a hook returns for it; `None`: it has yielded something else.
pub(crate) fn wish(values: &MultiValue) -> Option<(Table, Flow)> {
    let wish = values.get(1)?.as_table()?.clone();
    let name: String = wish.raw_get("wish").ok()?;
    let flow = if name == "body" { Flow::AwaitBody } else { Flow::Suspend };
    Some((wish, flow))
}

/// Waits for a wish; the values that the script receives.
pub(crate) async fn fulfil(engine: &Engine, services: &Services, wish: &Table, io: &dyn Io) -> Result<MultiValue> {
    let name: String = wish.raw_get("wish")?;
    match &*name {
        "sleep" => {
            let seconds: f64 = wish.raw_get("seconds")?;
            if !(0.0..=LONGEST_SLEEP).contains(&seconds) {
                return Err(Error::runtime(format!(
                    "expected a time to sleep from 0 to 3600 seconds, found {seconds}"
                )));
            }
            weir_runtime::sleep(Duration::from_secs_f64(seconds)).await;
            Ok(MultiValue::new())
        }
        "http" => {
            let callout = callout(services, wish)?;
            match io.callout(callout).await {
                Ok(answer) => {
                    let _bound = engine.limit_memory()?;
                    let lua = &engine.lua;
                    let fields = lua.create_table()?;
                    for (name, value) in answer.fields() {
                        let line = lua.create_table()?;
                        line.raw_push(lua.create_string(name)?)?;
                        line.raw_push(lua.create_string(value)?)?;
                        fields.raw_push(line)?;
                    }
                    (answer.status(), lua.create_string(answer.body())?, fields).into_lua_multi(lua)
                }
                Err(error) => (Value::Nil, error.reason()).into_lua_multi(&engine.lua),
            }
        }
        other => Err(Error::runtime(format!("a script cannot wait for {other}"))),
    }
}

/// The request of a wish.
fn callout(services: &Services, wish: &Table) -> Result<Callout> {
    let address: String = wish.raw_get("address")?;
    let verify: bool = wish.raw_get("verify")?;
    let Some(service) = services.find(&address, verify) else {
        return Err(Error::runtime(format!(
            "no request can go to {address}: scheme, host and port have to stand as a text in the script or in its \
             configuration"
        )));
    };
    let method: String = wish.raw_get("method")?;
    let method = match Method::parse(method.as_bytes()) {
        Method::Other => return Err(Error::runtime(format!("a service cannot be asked with the method {method}"))),
        method => method,
    };
    let target: LuaString = wish.raw_get("target")?;
    if !target.as_bytes().iter().all(u8::is_ascii_graphic) {
        return Err(Error::runtime("expected a path and a query that are encoded"));
    }
    let mut callout = service.callout_to(method, &target.as_bytes());
    let fields: Table = wish.raw_get("fields")?;
    for line in fields.sequence_values::<Table>() {
        let line = line?;
        let (name, value): (LuaString, LuaString) = (line.raw_get(1)?, line.raw_get(2)?);
        callout.add_field(&crate::api::editable(&name)?, &value.as_bytes());
    }
    if let Some(body) = wish.raw_get::<Option<LuaString>>("body")? {
        callout.set_body(&body.as_bytes());
        let kind = FieldName::constant("Content-Type");
        if !callout.has_field(&kind) && wish.raw_get::<bool>("is_form")? {
            callout.add_field(&kind, b"application/x-www-form-urlencoded");
        }
    }
    if let Some(seconds) = wish.raw_get::<Option<f64>>("timeout")?
        && let Ok(timeout) = Duration::try_from_secs_f64(seconds)
    {
        callout.set_timeout(timeout);
    }
    Ok(callout)
}
