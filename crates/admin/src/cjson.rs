//! Why a text is no JSON, in the words that clients of APISIX know from its JSON library.

/// The first fault of a text that `error` says is no JSON.
///
/// The words are `Expected WHAT but found TOKEN at character N`; where the text keeps to that grammar and serde still
/// refuses it (a number too large, nesting too deep), they are serde's.
pub(crate) fn fault(text: &str, error: &serde_json::Error) -> String {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    match reader.document() {
        Err((expected, found, at)) => format!("Expected {expected} but found {found} at character {}", at + 1),
        Ok(()) => error.to_string(),
    }
}

type Fault = (&'static str, &'static str, usize);

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text,
    Number,
    Boolean,
    Null,
    Colon,
    Comma,
    End,
    Invalid,
}

impl Token {
    fn name(self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::Text => "T_STRING",
            Self::Number => "T_NUMBER",
            Self::Boolean => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Invalid => "invalid token",
        }
    }
}

impl Reader<'_> {
    fn document(&mut self) -> Result<(), Fault> {
        // What is open: true for an object.
        let mut open: Vec<bool> = Vec::new();
        let mut wants_value = true;
        loop {
            if wants_value {
                let (token, at) = self.token();
                match token {
                    Token::ObjectBegin => {
                        let (token, at) = self.token();
                        if token == Token::ObjectEnd {
                            wants_value = false;
                        } else {
                            self.key((token, at), "object key string")?;
                            open.push(true);
                        }
                    }
                    Token::ArrayBegin => {
                        let before = self.at;
                        if self.token().0 == Token::ArrayEnd {
                            wants_value = false;
                        } else {
                            self.at = before;
                            open.push(false);
                        }
                    }
                    Token::Text | Token::Number | Token::Boolean | Token::Null => wants_value = false,
                    other => return Err(("value", other.name(), at)),
                }
                continue;
            }
            let (token, at) = self.token();
            match (open.last(), token) {
                (None, Token::End) => return Ok(()),
                (None, other) => return Err(("the end", other.name(), at)),
                (Some(true), Token::ObjectEnd) | (Some(false), Token::ArrayEnd) => {
                    open.pop();
                }
                (Some(true), Token::Comma) => {
                    let next = self.token();
                    self.key(next, "object key string")?;
                    wants_value = true;
                }
                (Some(false), Token::Comma) => wants_value = true,
                (Some(true), other) => return Err(("comma or object end", other.name(), at)),
                (Some(false), other) => return Err(("comma or array end", other.name(), at)),
            }
        }
    }

    /// A key and the colon behind it.
    fn key(&mut self, (token, at): (Token, usize), expected: &'static str) -> Result<(), Fault> {
        if token != Token::Text {
            return Err((expected, token.name(), at));
        }
        match self.token() {
            (Token::Colon, _) => Ok(()),
            (other, at) => Err(("colon", other.name(), at)),
        }
    }

    /// The next token and where it begins.
    fn token(&mut self) -> (Token, usize) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let at = self.at;
        let Some(&byte) = self.bytes.get(at) else { return (Token::End, at) };
        self.at += 1;
        let token = match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => self.text(),
            b'-' | b'0'..=b'9' => {
                while matches!(self.bytes.get(self.at), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
                    self.at += 1;
                }
                Token::Number
            }
            _ => self.word(at),
        };
        (token, at)
    }

    fn text(&mut self) -> Token {
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => return Token::Text,
                b'\\' => self.at += 1,
                0..0x20 => return Token::Invalid,
                _ => {}
            }
        }
        Token::Invalid
    }

    fn word(&mut self, at: usize) -> Token {
        let rest = self.bytes.get(at..).unwrap_or_default();
        for (word, token) in [("true", Token::Boolean), ("false", Token::Boolean), ("null", Token::Null)] {
            if rest.starts_with(word.as_bytes()) {
                self.at = at + word.len();
                return token;
            }
        }
        Token::Invalid
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn faults_are_told_in_the_known_words() {
        let cases = [
            ("{bad", "Expected object key string but found invalid token at character 2"),
            ("bad", "Expected value but found invalid token at character 1"),
            (" ", "Expected value but found T_END at character 2"),
            ("{\"a\" 1}", "Expected colon but found T_NUMBER at character 6"),
            ("{\"a\":1", "Expected comma or object end but found T_END at character 7"),
            ("{\"a\":1,}", "Expected object key string but found T_OBJ_END at character 8"),
            ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
            ("[1,]", "Expected value but found T_ARR_END at character 4"),
            ("{} {}", "Expected the end but found T_OBJ_BEGIN at character 4"),
            ("{\"a\":tru}", "Expected value but found invalid token at character 6"),
            ("\"open", "Expected value but found invalid token at character 1"),
            ("{\"a\":[{},[],null,\"\\\"\"]", "Expected comma or object end but found T_END at character 23"),
        ];
        for (text, expected) in cases {
            let error = serde_json::from_str::<serde_json::Value>(text).expect_err(text);
            assert_eq!(super::fault(text, &error), expected, "{text}");
        }
    }

    #[test]
    fn what_the_words_cannot_say_is_told_by_serde() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let error = serde_json::from_str::<serde_json::Value>(&deep).expect_err("too deep");
        assert!(super::fault(&deep, &error).contains("recursion limit"), "{error}");
    }
}
