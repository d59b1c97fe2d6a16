use std::fmt;

use super::head::resource;
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

resource! {
    /// Descriptions of gRPC services and their messages, for plugins that speak gRPC: `grpc-transcode` refers to them by
    /// `proto_id`.
    pub struct Proto {
        /// The text of one `.proto` file, which may import Google's own (`google/protobuf/…`, `google/api/annotations.proto`
        /// and `google/api/http.proto`) and no others; or, in base64,
        /// a descriptor set with everything in it, as `protoc --include_imports --descriptor_set_out` writes it.
        #[schemars(length(min = 1, max = 1_048_576))]
        pub content: String,
    }
}

/// Reason why a content is not a proto.
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

    /// Compiles a content.
    ///
    /// # Errors
    /// The content is neither a `.proto` file nor a descriptor set.
    pub fn compile(content: &str) -> Result<DescriptorPool, String> {
        compile(content).map_err(|refusal| refusal.0)
    }
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

/// File name of the text in its compiler. No file can import it by that name.
const NAME: &str = "content";

fn compile_text(content: &str) -> Result<DescriptorPool, String> {
    let file = File::from_source(NAME, content).map_err(|error| told(&error))?;
    let mut descriptor = file.file_descriptor_proto().clone();
    leave_out_literals(&mut descriptor);
    let mut resolver = ChainFileResolver::new();
    resolver.add(Only(File::from_file_descriptor_proto(descriptor)));
    resolver.add(GoogleFileResolver::new());
    resolver.add(Annotations);
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.open_file(NAME).map_err(|error| told(&error))?;
    Ok(compiler.descriptor_pool())
}

fn compile_set(bytes: &[u8]) -> Result<DescriptorPool, String> {
    let mut set = FileDescriptorSet::decode(bytes).map_err(|error| error.to_string())?;
    if set.file.is_empty() {
        return Err("there is no file in it".to_owned());
    }
    let files = set.file.clone();
    set.file.iter_mut().for_each(leave_out_literals);
    let mut pool = DescriptorPool::new();
    // Only the bytes have the values of options beyond Google's own, such as those of `google.api.http`.
    let added =
        if files == set.file { pool.decode_file_descriptor_set(bytes) } else { pool.add_file_descriptor_set(set) };
    added.map_err(|error| error.to_string())?;
    Ok(pool)
}

/// The one file there is beside Google's.
struct Only(File);

impl FileResolver for Only {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if name == NAME { Ok(self.0.clone()) } else { Err(protox::Error::file_not_found(name)) }
    }
}

/// The option by which a method says which requests of HTTP stand for its calls.
struct Annotations;

/// Name of the option.
const HTTP: &str = "google.api.http";

impl FileResolver for Annotations {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let text = match name {
            "google/api/annotations.proto" => ANNOTATIONS,
            "google/api/http.proto" => RULES,
            _ => return Err(protox::Error::file_not_found(name)),
        };
        File::from_source(name, text)
    }
}

const ANNOTATIONS: &str = "\
syntax = \"proto3\";
package google.api;
import \"google/api/http.proto\";
import \"google/protobuf/descriptor.proto\";
extend google.protobuf.MethodOptions { HttpRule http = 72295728; }
";

const RULES: &str = "\
syntax = \"proto3\";
package google.api;
message Http { repeated HttpRule rules = 1; bool fully_decode_reserved_expansion = 2; }
message HttpRule {
  string selector = 1;
  oneof pattern {
    string get = 2;
    string put = 3;
    string post = 4;
    string delete = 5;
    string patch = 6;
    CustomHttpPattern custom = 8;
  }
  string body = 7;
  string response_body = 12;
  repeated HttpRule additional_bindings = 11;
}
message CustomHttpPattern { string kind = 1; string path = 2; }
";

/// An error on one line, which begins with line and column where they are known.
fn told(error: &protox::Error) -> String {
    // The form for programmers is the one that has them.
    let told = format!("{error:?}").replace('\n', " ");
    told.strip_prefix("content:").map_or(told.as_str(), str::trim_start).to_owned()
}

/// Takes options with a message for a value (`option (x) = { … }`) out of a file. The library recurses as deep as they
/// are nested, and the stack is bounded; no code here reads them, but for those of `google.api.http`, which nest little.
fn leave_out_literals(file: &mut FileDescriptorProto) {
    fn clean(options: Option<&mut Vec<UninterpretedOption>>) {
        if let Some(options) = options {
            options
                .retain(|option| option.aggregate_value.as_ref().is_none_or(|value| is_http(option) && is_flat(value)));
        }
    }
    fn is_http(option: &UninterpretedOption) -> bool {
        matches!(&option.name[..], [part] if part.is_extension && part.name_part.trim_start_matches('.') == HTTP)
    }
    /// Counts every bracket, in texts too: those in paths come in pairs.
    fn is_flat(value: &str) -> bool {
        let mut depth = 0_usize;
        value.bytes().all(|byte| {
            match byte {
                b'{' | b'<' | b'[' => depth += 1,
                b'}' | b'>' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth <= 16
        })
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
        // A message with a text.\nmessage Say { string text = 1; map<string, int32> n = 2; }\n\
        service Echo { rpc Say(Say) returns (stream google.protobuf.Empty); }\n";

    #[test]
    fn contents_are_compiled() {
        let pool = compile(ECHO).expect("a .proto file");
        assert!(pool.get_service_by_name("echo.Echo").is_some());
        let set = STANDARD.encode(pool.encode_to_vec());
        let again = compile(&format!("{set}\n")).expect("a descriptor set");
        assert!(again.get_message_by_name("echo.Say").is_some());
        // Of texts and of sets the rules of HTTP are kept.
        let ruled = "syntax = \"proto3\";\npackage a;\nimport \"google/api/annotations.proto\";\nmessage M {}\n\
            service S { rpc N(M) returns (M) { option (google.api.http) = { get: \"/{x}\" }; } }\n";
        let text = compile(ruled).expect("a .proto file");
        let set = compile(&STANDARD.encode(text.encode_to_vec())).expect("a descriptor set");
        for pool in [text, set] {
            let options =
                pool.get_service_by_name("a.S").and_then(|of| of.methods().next()).expect("a method").options();
            let names: Vec<_> = options.extensions().map(|(option, _)| option.full_name().to_owned()).collect();
            assert_eq!(names, ["google.api.http"]);
        }
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

    /// The process survives every content.
    #[test]
    fn depth_and_size_have_bounds() {
        const SIZE: usize = 1 << 20;
        let deep = |open: &str, close: &str| open.repeat(SIZE / open.len() / 2) + &close.repeat(SIZE / open.len() / 2);
        for (open, close) in [("message a{", "}"), ("{", "}"), ("option (a)={", "}"), ("[", "]"), ("(", ")")] {
            assert!(compile(&deep(open, close)).is_err(), "{open}");
        }
        let head = "syntax = \"proto2\";\nimport \"google/protobuf/descriptor.proto\";\nmessage M { repeated M m = 1; }\n\
            extend google.protobuf.FileOptions { optional M o = 50000; }\noption (o) = { ";
        let rule = "syntax = \"proto3\";\nimport \"google/api/annotations.proto\";\nmessage M {}\n\
            service S { rpc N(M) returns (M) { option (google.api.http) = { ";
        for (open, close) in [("additional_bindings{", "}"), ("additional_bindings<", ">")] {
            assert!(compile(&format!("{rule}{} }}; }} }}\n", deep(open, close))).is_ok(), "{open}");
        }
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
