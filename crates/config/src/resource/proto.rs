use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use protox::prost::Message;
use protox::prost_reflect::DescriptorPool;
use protox::prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    UninterpretedOption,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::labels_schema;
use super::{Id, Labels, Origin};

/// What gRPC services and their messages look like, for plugins that speak gRPC. They are checked and kept; no plugin
/// uses one yet.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proto {
    /// Identifier, unique among protos; `arr_<n>` when there is none.
    #[serde(default = "Id::unset", skip_serializing_if = "Id::is_unset")]
    pub id: Id,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub name: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub desc: Option<String>,
    /// Labels for people and tools.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub labels: Labels,
    /// When it was made, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_time: Option<i64>,
    /// When it was last changed, in seconds since 1970. Information only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_time: Option<i64>,
    /// The text of one `.proto` file, which may import Google's own (`google/protobuf/…`) and no others; or, in base64,
    /// a descriptor set with everything in it, as `protoc --include_imports --descriptor_set_out` writes it.
    #[schemars(length(min = 1, max = 1_048_576))]
    pub content: String,
    /// Where it stood.
    #[serde(skip)]
    pub origin: Origin,
}

/// Why a content is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotAProto(String);

impl fmt::Display for NotAProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Proto {
    /// Characters of a content, at most.
    pub(crate) const LONGEST: usize = 1 << 20;
}

/// Compiles a content, to see whether it can be.
pub(crate) fn compile(content: &str) -> Result<DescriptorPool, NotAProto> {
    let refusal = match compile_text(content) {
        Ok(pool) => return Ok(pool),
        Err(refusal) => refusal,
    };
    let Ok(bytes) = STANDARD.decode(content.trim()) else {
        return Err(NotAProto(format!("no .proto file: {refusal}")));
    };
    compile_set(&bytes).map_err(|other| {
        NotAProto(format!("neither a .proto file ({refusal}) nor a descriptor set in base64 ({other})"))
    })
}

/// What the text is called in its compiler. Nobody can import it by that name.
const NAME: &str = "content";

fn compile_text(content: &str) -> Result<DescriptorPool, String> {
    let file = File::from_source(NAME, content).map_err(|error| told(&error))?;
    let mut descriptor = file.file_descriptor_proto().clone();
    leave_out_literals(&mut descriptor);
    let mut resolver = ChainFileResolver::new();
    resolver.add(Only(File::from_file_descriptor_proto(descriptor)));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.open_file(NAME).map_err(|error| told(&error))?;
    Ok(compiler.descriptor_pool())
}

fn compile_set(bytes: &[u8]) -> Result<DescriptorPool, String> {
    let mut set = FileDescriptorSet::decode(bytes).map_err(|error| error.to_string())?;
    if set.file.is_empty() {
        return Err("there is no file in it".to_owned());
    }
    set.file.iter_mut().for_each(leave_out_literals);
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_set(set).map_err(|error| error.to_string())?;
    Ok(pool)
}

/// The one file there is beside Google's.
struct Only(File);

impl FileResolver for Only {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if name == NAME { Ok(self.0.clone()) } else { Err(protox::Error::file_not_found(name)) }
    }
}

/// An error on one line, which begins with line and column where they are known.
fn told(error: &protox::Error) -> String {
    // The form for programmers is the one that has them.
    let told = format!("{error:?}").replace('\n', " ");
    told.strip_prefix("content:").map_or(told.as_str(), str::trim_start).to_owned()
}

/// Takes options with a message for a value (`option (x) = { … }`) out of a file. The library that reads them goes as
/// deep as they do, and the stack ends somewhere; and nobody here reads them.
fn leave_out_literals(file: &mut FileDescriptorProto) {
    fn clean(options: Option<&mut Vec<UninterpretedOption>>) {
        if let Some(options) = options {
            options.retain(|option| option.aggregate_value.is_none());
        }
    }
    macro_rules! of {
        ($($item:expr),*) => {$(clean($item.options.as_mut().map(|options| &mut options.uninterpreted_option));)*};
    }
    fn fields(list: &mut [FieldDescriptorProto]) {
        for field in list {
            of!(field);
        }
    }
    fn enums(list: &mut [EnumDescriptorProto]) {
        for item in list {
            of!(item);
            for value in &mut item.value {
                of!(value);
            }
        }
    }
    fn messages(list: &mut [DescriptorProto]) {
        for message in list {
            of!(message);
            fields(&mut message.field);
            fields(&mut message.extension);
            enums(&mut message.enum_type);
            for oneof in &mut message.oneof_decl {
                of!(oneof);
            }
            for range in &mut message.extension_range {
                of!(range);
            }
            // Nested to a depth that both ways of reading one have a bound for.
            messages(&mut message.nested_type);
        }
    }
    of!(file);
    messages(&mut file.message_type);
    fields(&mut file.extension);
    enums(&mut file.enum_type);
    for service in &mut file.service {
        of!(service);
        for method in &mut service.method {
            of!(method);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::{Message, STANDARD, compile};
    use base64::Engine;
    use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

    const ECHO: &str = "syntax = \"proto3\";\npackage echo;\nimport \"google/protobuf/empty.proto\";\n\
        // What is said.\nmessage Say { string text = 1; map<string, int32> n = 2; }\n\
        service Echo { rpc Say(Say) returns (stream google.protobuf.Empty); }\n";

    #[test]
    fn contents_are_compiled() {
        let pool = compile(ECHO).expect("a .proto file");
        assert!(pool.get_service_by_name("echo.Echo").is_some());
        let set = STANDARD.encode(pool.encode_to_vec());
        let again = compile(&format!("{set}\n")).expect("a descriptor set");
        assert!(again.get_message_by_name("echo.Say").is_some());
        let option = "syntax = \"proto2\";\nimport \"google/protobuf/descriptor.proto\";\n\
            message M { optional M m = 1; }\nextend google.protobuf.FileOptions { optional M o = 50000; }\n\
            option java_package = \"a\";\noption (o) = { m { m {} } };\n";
        assert!(compile(option).is_ok(), "{:?}", compile(option));
    }

    #[test]
    fn what_is_none_is_refused() {
        let file = FileDescriptorProto {
            name: Some("a.proto".into()),
            dependency: vec!["b.proto".into()],
            ..Default::default()
        };
        let lacking = STANDARD.encode(FileDescriptorSet { file: vec![file] }.encode_to_vec());
        let cases = [
            ("x", "no .proto file: 1:"),
            ("syntax = \"proto3\";\nmessage A {\n  strin text 1;\n}\n", "no .proto file: 3:"),
            ("syntax = \"proto3\";\nmessage A { B b = 1; }\n", "'B'"),
            ("syntax = \"proto3\";\nimport \"other.proto\";\n", "import 'other.proto' not found"),
            ("syntax = \"proto3\";\nimport \"content\";\n", "content"),
            ("syntax = \"proto3\";\nmessage A { int32 a = 1; int32 b = 1; }\n", "1"),
            ("abcd", "nor a descriptor set in base64"),
            (&lacking, "b.proto"),
        ];
        for (content, says) in cases {
            let refusal = compile(content).map(drop).expect_err(content).to_string();
            assert!(refusal.contains(says) && !refusal.contains('\n'), "{content}: {refusal}");
        }
    }

    /// Whatever somebody sends, the process goes on.
    #[test]
    fn depth_and_size_have_bounds() {
        const SIZE: usize = 1 << 20;
        let deep = |open: &str, close: &str| open.repeat(SIZE / open.len() / 2) + &close.repeat(SIZE / open.len() / 2);
        for (open, close) in [("message a{", "}"), ("{", "}"), ("option (a)={", "}"), ("[", "]"), ("(", ")")] {
            assert!(compile(&deep(open, close)).is_err(), "{open}");
        }
        let head = "syntax = \"proto2\";\nimport \"google/protobuf/descriptor.proto\";\nmessage M { repeated M m = 1; }\n\
            extend google.protobuf.FileOptions { optional M o = 50000; }\noption (o) = { ";
        for (open, close) in [("m{", "}"), ("m<", ">"), ("m:[{", "}]")] {
            assert!(compile(&format!("{head}{} }};\n", deep(open, close))).is_ok(), "{open}");
        }
        let mut nested = DescriptorProto { name: Some("a".into()), ..Default::default() };
        for _ in 0..2_000 {
            nested = DescriptorProto { name: Some("a".into()), nested_type: vec![nested], ..Default::default() };
        }
        let file = FileDescriptorProto { message_type: vec![nested], ..Default::default() };
        let bytes = FileDescriptorSet { file: vec![file] }.encode_to_vec();
        assert!(compile(&STANDARD.encode(bytes)).is_err());
        let many: String = (0..10_000).map(|n| format!("message M{n} {{ M{n} m = 1; string s = 2; }}\n")).collect();
        assert!(compile(&format!("syntax = \"proto3\";\n{many}")).is_ok());
    }
}
