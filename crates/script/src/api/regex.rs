//! Regular expressions of `ngx.re`, which take linear time: what only back-tracking can match is refused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Error, Lua, LuaString, Result, Table, Value};
use regex::bytes::Regex;
use weir_expr::{RegexOptions, compile_regex};

use crate::call;

/// Most expressions that are kept compiled.
const MOST: usize = 256;
/// Instructions that compiling an expression counts as.
const COMPILATION: u64 = 1000;
/// Bytes of a text that count as one instruction.
const BYTES: u64 = 8;

/// An expression and its options.
type Key = (Box<[u8]>, Box<str>);

thread_local! {
    static COMPILED: RefCell<HashMap<Key, Rc<Regex>>> = RefCell::default();
}

fn compiled(pattern: &[u8], options: &str) -> Result<Rc<Regex>> {
    COMPILED.with_borrow_mut(|known| {
        let key = (pattern.into(), options.into());
        if let Some(regex) = known.get(&key) {
            return Ok(Rc::clone(regex));
        }
        call::spend(COMPILATION)?;
        let text = std::str::from_utf8(pattern).map_err(|_| Error::runtime("a regular expression is text in UTF-8"))?;
        let options = RegexOptions::parse(options).map_err(Error::runtime)?;
        let regex = compile_regex(text, options).map(|(regex, _)| Rc::new(regex)).map_err(Error::runtime)?;
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, Rc::clone(&regex));
        Ok(regex)
    })
}

pub(super) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    // The first match from a position on: begin, end, and the groups with 0 for the whole; nil without one.
    raw.set(
        "regex",
        lua.create_function(|lua, (text, pattern, options, from): (LuaString, LuaString, Option<String>, usize)| {
            let regex = compiled(&pattern.as_bytes(), &options.unwrap_or_default())?;
            let text = text.as_bytes();
            if from == 0 || from > text.len() + 1 {
                return Ok((None, None, None));
            }
            let found = regex.captures_at(&text, from - 1);
            let end = found.as_ref().and_then(|found| found.get(0)).map_or(text.len(), |whole| whole.end());
            call::spend((end + 1).saturating_sub(from) as u64 / BYTES)?;
            let Some(found) = found else { return Ok((None, None, None)) };
            let groups = lua.create_table()?;
            for (at, group) in found.iter().enumerate() {
                let value = match group {
                    Some(group) => Value::String(lua.create_string(group.as_bytes())?),
                    None => Value::Boolean(false),
                };
                groups.raw_set(at, value)?;
            }
            for name in regex.capture_names().flatten() {
                let value = match found.name(name) {
                    Some(group) => Value::String(lua.create_string(group.as_bytes())?),
                    None => Value::Boolean(false),
                };
                groups.raw_set(name, value)?;
            }
            let whole = found.get(0).map(|whole| (whole.start() + 1, whole.end()));
            Ok((whole.map(|whole| whole.0), whole.map(|whole| whole.1), Some(groups)))
        })?,
    )
}
