//! Lua's patterns (manual of Lua 5.1, section 5.4.1). LuaJIT's own matcher backtracks without a bound and calls no hook;
//! here each step counts for the budget of the call.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value};

use crate::call;

/// Steps that count as one instruction each, taken from the budget at a time.
const STEPS: usize = 1024;
/// Bytes of a set, and of a text that comes again, that take one more step.
const SET: usize = 16;
/// Most groups of a pattern.
const MOST_GROUPS: usize = 32;
/// Deepest nesting of the matcher, which calls itself for what follows a group or a repetition.
const DEEPEST: usize = 200;

pub(crate) fn add(lua: &Lua, raw: &Table) -> Result<()> {
    // The first match from a position on: begin, end, and the groups; nothing without one.
    raw.set(
        "match",
        lua.create_function(|lua, (text, pattern, from): (LuaString, LuaString, usize)| {
            let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
            let mut matcher = Matcher { text: &text, pattern: &pattern, groups: Vec::new(), steps: 0, depth: 0 };
            let (anchored, at) = if pattern.first() == Some(&b'^') { (true, 1) } else { (false, 0) };
            let mut start = from.saturating_sub(1);
            while start <= text.len() {
                matcher.groups.clear();
                if let Some(end) = matcher.matches(start, at)? {
                    let mut values = MultiValue::new();
                    values.push_back(Value::Number((start + 1) as f64));
                    values.push_back(Value::Number(end as f64));
                    for group in &matcher.groups {
                        values.push_back(match group.kind {
                            Kind::Position => Value::Number((group.start + 1) as f64),
                            Kind::Closed(end) => {
                                Value::String(lua.create_string(text.get(group.start..end).unwrap_or_default())?)
                            }
                            Kind::Open => return Err(Error::runtime("unfinished capture")),
                        });
                    }
                    return Ok(values);
                }
                if anchored {
                    break;
                }
                start += 1;
            }
            Ok(MultiValue::new())
        })?,
    )?;
    // A replacement text: %0 to %9 stand for the groups.
    raw.set(
        "substitute",
        lua.create_function(|lua, (with, whole, groups): (LuaString, LuaString, mlua::Variadic<Value>)| {
            let mut out = Vec::new();
            let with = with.as_bytes();
            let mut bytes = with.iter();
            while let Some(byte) = bytes.next() {
                if *byte != b'%' {
                    out.push(*byte);
                    continue;
                }
                match bytes.next() {
                    Some(b'0') => out.extend_from_slice(&whole.as_bytes()),
                    Some(b'1') if groups.is_empty() => out.extend_from_slice(&whole.as_bytes()),
                    Some(digit @ b'1'..=b'9') => {
                        let value = groups.get(usize::from(digit - b'1')).cloned();
                        let text = value.map(|value| lua.coerce_string(value)).transpose()?.flatten();
                        let text = text.ok_or_else(|| Error::runtime("invalid capture index in replacement string"))?;
                        out.extend_from_slice(&text.as_bytes());
                    }
                    Some(other) => out.push(*other),
                    None => return Err(Error::runtime("invalid use of '%' in replacement string")),
                }
            }
            lua.create_string(out)
        })?,
    )
}

/// A group of a pattern.
#[derive(Clone, Copy)]
struct Group {
    start: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Open,
    /// The end.
    Closed(usize),
    Position,
}

struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    groups: Vec<Group>,
    steps: usize,
    depth: usize,
}

fn malformed(reason: &str) -> Error {
    Error::runtime(format!("malformed pattern ({reason})"))
}

impl Matcher<'_> {
    fn step(&mut self) -> Result<()> {
        self.steps(1)
    }

    /// Takes this many steps.
    fn steps(&mut self, steps: usize) -> Result<()> {
        self.steps += steps;
        if self.steps >= STEPS {
            call::spend(std::mem::take(&mut self.steps) as u64)?;
        }
        Ok(())
    }

    /// The end of a match of the pattern from `at` on with the text from `start` on.
    fn matches(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Error::runtime("pattern too complex"));
        }
        let end = self.matches_here(start, at);
        self.depth -= 1;
        end
    }

    fn matches_here(&mut self, mut start: usize, mut at: usize) -> Result<Option<usize>> {
        loop {
            self.step()?;
            let rest = self.pattern.get(at..).unwrap_or_default();
            match rest {
                [] => return Ok(Some(start)),
                [b'$'] => return Ok((start == self.text.len()).then_some(start)),
                [b'(', b')', ..] => return self.open(start, at + 2, Kind::Position),
                [b'(', ..] => return self.open(start, at + 1, Kind::Open),
                [b')', ..] => return self.close(start, at + 1),
                [b'%', b'b', ..] => match self.balanced(start, at + 2)? {
                    Some(end) => (start, at) = (end, at + 4),
                    None => return Ok(None),
                },
                [b'%', b'f', ..] => {
                    let end = self.item_end(at + 2)?;
                    self.steps((end - at) / SET)?;
                    if self.pattern.get(at + 2) != Some(&b'[') {
                        return Err(Error::runtime("missing '[' after '%f' in pattern"));
                    }
                    let before = start.checked_sub(1).and_then(|at| self.text.get(at)).copied().unwrap_or(0);
                    let after = self.text.get(start).copied().unwrap_or(0);
                    if self.in_set(before, at + 2, end) || !self.in_set(after, at + 2, end) {
                        return Ok(None);
                    }
                    at = end;
                }
                [b'%', digit @ b'0'..=b'9', ..] => match self.again(start, *digit)? {
                    Some(end) => (start, at) = (end, at + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.item_end(at)?;
                    self.steps((end - at) / SET)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if self.is_item(start, at, end)
                                && let Some(found) = self.matches(start + 1, end + 1)?
                            {
                                return Ok(Some(found));
                            }
                            at = end + 1;
                        }
                        Some(b'*') => return self.most(start, 0, at, end),
                        Some(b'+') => return self.most(start, 1, at, end),
                        Some(b'-') => return self.fewest(start, at, end),
                        _ if self.is_item(start, at, end) => (start, at) = (start + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn open(&mut self, start: usize, at: usize, kind: Kind) -> Result<Option<usize>> {
        if self.groups.len() == MOST_GROUPS {
            return Err(Error::runtime("too many captures"));
        }
        self.groups.push(Group { start, kind });
        let groups = self.groups.len();
        let end = self.matches(start, at)?;
        if end.is_none() {
            self.groups.truncate(groups - 1);
        }
        Ok(end)
    }

    fn close(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        let open = self.groups.iter().rposition(|group| matches!(group.kind, Kind::Open));
        let open = open.ok_or_else(|| Error::runtime("invalid pattern capture"))?;
        self.set(open, Kind::Closed(start));
        let end = self.matches(start, at)?;
        if end.is_none() {
            self.set(open, Kind::Open);
        }
        Ok(end)
    }

    fn set(&mut self, group: usize, kind: Kind) {
        if let Some(group) = self.groups.get_mut(group) {
            group.kind = kind;
        }
    }

    /// As many of an item as there are, then fewer.
    fn most(&mut self, start: usize, least: usize, at: usize, end: usize) -> Result<Option<usize>> {
        let mut count = 0;
        while self.is_item(start + count, at, end) {
            self.steps(1 + (end - at) / SET)?;
            count += 1;
        }
        while count >= least {
            if let Some(found) = self.matches(start + count, end + 1)? {
                return Ok(Some(found));
            }
            match count.checked_sub(1) {
                Some(fewer) => count = fewer,
                None => break,
            }
        }
        Ok(None)
    }

    /// As few of an item as will do.
    fn fewest(&mut self, mut start: usize, at: usize, end: usize) -> Result<Option<usize>> {
        loop {
            if let Some(found) = self.matches(start, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_item(start, at, end) {
                return Ok(None);
            }
            self.steps((end - at) / SET)?;
            start += 1;
        }
    }

    /// `%bxy`: from an x to the y that belongs to it.
    fn balanced(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        let (Some(open), Some(close)) = (self.pattern.get(at).copied(), self.pattern.get(at + 1).copied()) else {
            return Err(malformed("missing arguments to '%b'"));
        };
        if self.text.get(start) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1usize;
        let mut at = start + 1;
        while let Some(byte) = self.text.get(at).copied() {
            self.step()?;
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
            at += 1;
        }
        Ok(None)
    }

    /// `%1`: the text of a group once more.
    fn again(&mut self, start: usize, digit: u8) -> Result<Option<usize>> {
        let group = usize::from(digit).checked_sub(usize::from(b'1')).and_then(|at| self.groups.get(at)).copied();
        let Some(Group { start: from, kind: Kind::Closed(to) }) = group else {
            return Err(Error::runtime(format!("invalid capture index %{}", digit as char)));
        };
        let known = self.text.get(from..to).unwrap_or_default();
        self.steps(known.len() / SET)?;
        let is_there = self.text.get(start..).is_some_and(|rest| rest.starts_with(known));
        Ok(is_there.then_some(start + known.len()))
    }

    /// The end of the item of a pattern that begins at `at`: a character, a class or a set.
    fn item_end(&self, at: usize) -> Result<usize> {
        match self.pattern.get(at) {
            None => Err(malformed("ends with '%f'")),
            Some(b'%') if self.pattern.len() == at + 1 => Err(malformed("ends with '%'")),
            Some(b'%') => Ok(at + 2),
            Some(b'[') => {
                let mut end = at + 1;
                if self.pattern.get(end) == Some(&b'^') {
                    end += 1;
                }
                // A `]` that comes first is one of the set.
                let mut is_first = true;
                loop {
                    match self.pattern.get(end) {
                        None => return Err(malformed("missing ']'")),
                        Some(b']') if !is_first => return Ok(end + 1),
                        Some(b'%') => end += 2,
                        Some(_) => end += 1,
                    }
                    is_first = false;
                }
            }
            Some(_) => Ok(at + 1),
        }
    }

    /// True if the text has such an item at `start`.
    fn is_item(&self, start: usize, at: usize, end: usize) -> bool {
        let Some(byte) = self.text.get(start).copied() else { return false };
        match self.pattern.get(at) {
            Some(b'.') => true,
            Some(b'%') => self.pattern.get(at + 1).is_some_and(|class| in_class(byte, *class)),
            Some(b'[') => self.in_set(byte, at, end),
            other => other == Some(&byte),
        }
    }

    /// True if a byte is in the set that stands from `at` to `end`, brackets included.
    fn in_set(&self, byte: u8, at: usize, end: usize) -> bool {
        let set = self.pattern.get(at + 1..end.saturating_sub(1)).unwrap_or_default();
        let (set, is_inverted) = match set {
            [b'^', rest @ ..] => (rest, true),
            set => (set, false),
        };
        let mut rest = set;
        let mut is_in = false;
        loop {
            rest = match rest {
                [] => break,
                [b'%', class, tail @ ..] => {
                    is_in |= in_class(byte, *class);
                    tail
                }
                [low, b'-', high, tail @ ..] => {
                    is_in |= (*low..=*high).contains(&byte);
                    tail
                }
                [one, tail @ ..] => {
                    is_in |= *one == byte;
                    tail
                }
            };
        }
        is_in != is_inverted
    }
}

/// True if a byte is of a class such as `%a`; in upper case the class is inverted.
fn in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}
