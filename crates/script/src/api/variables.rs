//! Variables of a request, by their names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Lua, LuaString, Result, Table, Value};
use weir_expr::{Source, Variable};

use super::exchange;
use crate::engine::unbounded;

/// Most names that are kept compiled.
const MOST_NAMES: usize = 1024;

/// Variables by their names; `None` for a name that nobody knows.
type Names = HashMap<Box<[u8]>, Option<Rc<Variable>>>;

thread_local! {
    /// Names that scripts have used.
    static NAMES: RefCell<Names> = RefCell::default();
}

fn named(name: &[u8]) -> Option<Rc<Variable>> {
    NAMES.with_borrow_mut(|names| {
        if let Some(known) = names.get(name) {
            return known.clone();
        }
        if names.len() >= MOST_NAMES {
            names.clear();
        }
        let variable = std::str::from_utf8(name).ok().and_then(|name| Variable::parse(name).ok()).map(Rc::new);
        names.insert(name.into(), variable.clone());
        variable
    })
}

/// The value of a variable; nil when it is not set or nobody knows it, as in nginx.
pub(crate) fn variable(lua: &Lua, source: &dyn Source, name: &LuaString) -> Result<Value> {
    let Some(variable) = named(&name.as_bytes()) else { return Ok(Value::Nil) };
    value(lua, source, &variable)
}

fn value(lua: &Lua, source: &dyn Source, variable: &Variable) -> Result<Value> {
    match source.variable(variable) {
        None => Ok(Value::Nil),
        Some(weir_expr::Value::Bytes(text)) => lua.create_string(text).map(Value::String),
        Some(weir_expr::Value::Boolean(value)) => Ok(Value::Boolean(value)),
        Some(other) => {
            let mut text = Vec::new();
            other.write_to(&mut text);
            lua.create_string(text).map(Value::String)
        }
    }
}

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    raw.set(
        "var",
        unbounded(lua, |lua, name: LuaString| {
            let Some(variable) = named(&name.as_bytes()) else { return Ok(Value::Nil) };
            exchange(|exchange| value(lua, exchange.as_request().source(), &variable))?
        })?,
    )
}
