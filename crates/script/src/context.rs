//! The table that scripts share on an exchange.

use std::sync::LazyLock;

use mlua::{Error, Lua, Result, Table};
use weir_plugin::{PerRequest, lent};

/// Number of an interpreter among those of its thread: values of another one are of no use in it.
#[derive(Clone, Copy)]
pub(crate) struct Number(pub(crate) u64);

/// The context of scripts on an exchange, of one interpreter.
pub(crate) struct Context {
    pub(crate) engine: u64,
    pub(crate) table: Table,
}

pub(crate) static CONTEXT: LazyLock<PerRequest<Context>> = LazyLock::new(PerRequest::new);

/// The table that scripts share on the exchange that is lent.
pub(crate) fn lent_context(lua: &Lua) -> Result<Table> {
    let number = lua.app_data_ref::<Number>().map(|number| number.0);
    let known = lent(|exchange| {
        let cx = exchange.as_request();
        CONTEXT.get(&cx).filter(|context| Some(context.engine) == number).map(|context| context.table.clone())
    });
    match known {
        Some(Some(table)) => Ok(table),
        // Every call on an exchange has begun with its context.
        _ => Err(Error::runtime("there is no request here")),
    }
}
