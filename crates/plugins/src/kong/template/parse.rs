//! Reading of the expressions in templates.

use weir_wire::name::FieldName;

use super::Lookup;

/// Deepest nesting of an expression.
const DEPTH: usize = 16;

/// Reads an expression up to the `)` that ends it. The result has its length with that character.
pub(super) fn expression(text: &str) -> Result<(Lookup, usize), String> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let lookup = reader.any_of()?;
    reader.expect(")")?;
    Ok((lookup, reader.at))
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a sign or a word that stands next.
    fn take(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let Some(after) = self.rest().strip_prefix(token) else { return false };
        let is_word = token.ends_with(|c: char| c.is_ascii_alphanumeric());
        if is_word && after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return false;
        }
        self.at += token.len();
        true
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) { Ok(()) } else { Err(self.unexpected(&format!("'{token}'"))) }
    }

    fn unexpected(&self, expected: &str) -> String {
        match self.rest().chars().next() {
            Some(found) => format!("expected {expected}, found '{found}'"),
            None => format!("expected {expected} before the end"),
        }
    }

    fn any_of(&mut self) -> Result<Lookup, String> {
        let mut left = self.all_of()?;
        while self.take("or") {
            left = Lookup::Or(Box::new([left, self.all_of()?]));
        }
        Ok(left)
    }

    fn all_of(&mut self) -> Result<Lookup, String> {
        let mut left = self.comparison()?;
        while self.take("and") {
            left = Lookup::And(Box::new([left, self.comparison()?]));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Lookup, String> {
        let left = self.term()?;
        for (sign, equal) in [("==", true), ("~=", false)] {
            if self.take(sign) {
                return Ok(Lookup::Compare(Box::new([left, self.term()?]), equal));
            }
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Lookup, String> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("more than {DEPTH} levels"));
        }
        let term = self.nested_term();
        self.depth -= 1;
        term
    }

    fn nested_term(&mut self) -> Result<Lookup, String> {
        if self.take("not") {
            return Ok(Lookup::Not(Box::new(self.term()?)));
        }
        let mut term = if self.take("(") {
            let inner = self.any_of()?;
            self.expect(")")?;
            inner
        } else if self.take("nil") {
            Lookup::Nil
        } else if let Some(text) = self.quoted()? {
            Lookup::Text(text.into_bytes().into())
        } else {
            self.lookup()?
        };
        while self.take(":") {
            self.expect("sub")?;
            self.expect("(")?;
            let from = self.number()?;
            let to = if self.take(",") { self.number()? } else { -1 };
            self.expect(")")?;
            term = Lookup::Sub(Box::new(term), from, to);
        }
        Ok(term)
    }

    fn lookup(&mut self) -> Result<Lookup, String> {
        let Some(table) = ["headers", "query_params", "uri_captures"].into_iter().find(|name| self.take(name)) else {
            return Err(self.unexpected("headers, query_params, uri_captures or a text"));
        };
        let key = if self.take(".") {
            let rest = self.rest();
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.at += length;
            rest.get(..length).unwrap_or_default().to_owned()
        } else {
            self.expect("[")?;
            let key = match self.quoted()? {
                Some(key) => key,
                None if table == "uri_captures" => {
                    let number = self.number()?;
                    self.expect("]")?;
                    return usize::try_from(number).map(Lookup::NumberedGroup).map_err(|error| error.to_string());
                }
                None => return Err(self.unexpected("a text between quotes")),
            };
            self.expect("]")?;
            key
        };
        if key.is_empty() {
            return Err(self.unexpected("a name"));
        }
        match table {
            "headers" => {
                let field = FieldName::new(&key.replace('_', "-"));
                field.map(Lookup::Header).ok_or_else(|| format!("{key:?} is not the name of a header"))
            }
            "query_params" => Ok(Lookup::Argument(key.into_bytes().into())),
            _ => Ok(Lookup::Group(key.into())),
        }
    }

    fn number(&mut self) -> Result<i64, String> {
        self.skip_blanks();
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
        let number = rest.get(..length).unwrap_or_default().parse();
        let number = number.map_err(|_| self.unexpected("a whole number"))?;
        self.at += length;
        Ok(number)
    }

    /// A text between quotes, in which a backslash keeps the next character.
    fn quoted(&mut self) -> Result<Option<String>, String> {
        self.skip_blanks();
        let mut chars = self.rest().char_indices();
        let Some((_, quote)) = chars.next().filter(|(_, c)| matches!(c, '"' | '\'')) else { return Ok(None) };
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, kept)| kept)),
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(Some(text));
                }
                c => text.push(c),
            }
        }
        Err("a text without its closing quote".to_owned())
    }
}
