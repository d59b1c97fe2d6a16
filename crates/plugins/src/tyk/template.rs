//! Templates of Go's `text/template`, as far as transforms of bodies use them: fields, variables, pipelines, `if`, `range`,
//! `with`, and the functions of [`functions`]. Whatever else there is in Go is refused by name when a template is read.

mod functions;
mod parse;
mod print;
mod run;
pub(super) mod xml;

use serde_json::Value;

/// A template.
#[derive(Debug)]
pub(super) struct Template(Box<[Node]>);

/// A part of a template.
#[derive(Debug)]
enum Node {
    Text(Box<str>),
    /// A pipeline whose value is printed.
    Print(Pipe),
    /// A variable that is declared, or that gets another value.
    Set {
        name: Box<str>,
        is_new: bool,
        pipe: Pipe,
    },
    If {
        pipe: Pipe,
        body: Box<[Node]>,
        other: Box<[Node]>,
    },
    With {
        pipe: Pipe,
        body: Box<[Node]>,
        other: Box<[Node]>,
    },
    /// The variables take the key and the value of each element.
    Range {
        key: Option<Box<str>>,
        value: Option<Box<str>>,
        pipe: Pipe,
        body: Box<[Node]>,
        other: Box<[Node]>,
    },
}

/// Commands, of which each gets the value of the one before as its last argument.
#[derive(Debug)]
struct Pipe(Box<[Command]>);

/// A function with its arguments, or a value.
#[derive(Debug)]
enum Command {
    Value(Operand),
    Call(functions::Function, Box<[Operand]>),
}

/// A value with fields of it.
#[derive(Debug)]
struct Operand {
    base: Base,
    fields: Box<[Box<str>]>,
}

#[derive(Debug)]
enum Base {
    Dot,
    /// A variable; the empty name is that of the data.
    Variable(Box<str>),
    Literal(Value),
    Pipe(Pipe),
    /// A function without arguments where a value is expected.
    Call(functions::Function),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// The text cannot be read: line and reason.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        parse::template(text).map(Self)
    }

    /// The text that comes of data.
    ///
    /// # Errors
    /// A function cannot use its arguments, or the text or the work is more than the limits allow.
    pub(super) fn run(&self, data: &Value) -> Result<String, String> {
        run::run(&self.0, data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Template;

    #[test]
    fn templates_are_run_as_in_go() {
        let data = json!({
            "name": "a \"b\"", "n": 1.0, "big": 1_000_000.0, "half": 0.5, "yes": true, "none": null, "empty": "", "list": ["x", "y"],
            "of": {"b": {"c": "deep"}, "a": 2}, "rows": [{"id": 1, "ok": true}, {"id": 2, "ok": false}], "with-dash": "d"
        });
        for (text, expected) in [
            ("plain", "plain"),
            ("{{.name}}|{{ .n }}|{{.big}}|{{.half}}|{{.yes}}", "a \"b\"|1|1e+06|0.5|true"),
            ("{{.missing}}{{.none}}{{.of.b.x}}", "<no value><no value><no value>"),
            ("{{.of.b.c}} {{.list}} {{.of}}", "deep [x y] map[a:2 b:map[c:deep]]"),
            ("{{if .yes}}Y{{else}}N{{end}}{{if .empty}}Y{{else if .n}}E{{else}}N{{end}}", "YE"),
            ("{{range .list}}[{{.}}]{{end}}{{range .none}}x{{else}}-{{end}}", "[x][y]-"),
            ("{{range $i, $e := .rows}}{{if $i}},{{end}}{{$e.id}}{{end}}", "1,2"),
            ("{{range $k, $v := .of.b}}{{$k}}={{$v}}{{end}}", "c=deep"),
            ("{{with .of}}{{.a}}{{$.name}}{{end}}", "2a \"b\""),
            ("{{$x := .n}}{{$x}}{{$x = \"z\"}}{{$x}}", "1z"),
            ("a {{- .n -}} b", "a1b"),
            ("{{/* comment */}}{{index .list 1}}{{index . \"with-dash\"}}", "yd"),
            ("{{.name | printf \"%s-%v\" .n}}", "1-a \"b\""),
            (
                "{{len .list}}{{eq .n 1}}{{ne .name \"q\"}}{{and .yes .empty}}{{or .empty \"o\"}}{{not .yes}}",
                "2truetrueofalse",
            ),
            ("{{lt 1 2}}{{ge 1 2}}{{(index .rows 0).id}}", "truefalse1"),
            (
                "{{.name | jsonMarshal}}{{toJson .list}}{{.name | js}}{{html \"<\"}}",
                "\"a \\\"b\\\"\"[\"x\",\"y\"]a \\\"b\\\"&lt;",
            ),
            ("{{upper \"a\"}}{{\"B\" | lower}}{{default \"d\" .empty}}{{join \",\" .list}}", "Abdx,y"),
        ] {
            let template = Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(template.run(&data), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (text, fault) in [
            ("{{.a", "1: an action has no end"),
            ("x\n{{if .a}}", "2: if has no {{end}}"),
            ("{{end}}", "1: {{end}} without a beginning"),
            ("{{template \"x\"}}", "1: template is not supported"),
            ("{{sha256sum .a}}", "1: there is no function sha256sum"),
            ("{{$x}}", "1: the variable $x is not declared"),
            ("{{.a | }}", "1: "),
            ("{{\"a}}", "1: "),
        ] {
            let error = Template::parse(text).expect_err(text);
            assert!(error.starts_with(fault), "{text}: {error}");
        }
        let data = json!({"list": vec![0; 3000]});
        let long = Template::parse("{{range .list}}{{range $.list}}{{range $.list}}xxxxxxxx{{end}}{{end}}{{end}}")
            .expect("a template");
        assert!(long.run(&data).is_err());
        let fault = Template::parse("{{index .list 5000}}").expect("a template").run(&data);
        assert_eq!(fault, Err("index: there is no element 5000".to_owned()));
    }
}
