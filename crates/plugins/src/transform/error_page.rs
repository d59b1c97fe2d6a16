//! `error-page`: pages of one's own for failures of the gateway.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Code, Diagnostic, Node};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Origin, Phases, Plugin, ResponseCx};
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct ErrorPage;

/// An empty object: the pages stand in `plugin_metadata`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Puts the pages in the place of the gateway's own answers.
    enable: bool,
    /// The page for 404.
    error_404: Option<Page>,
    /// The page for 500.
    error_500: Option<Page>,
    /// The page for 502.
    error_502: Option<Page>,
    /// The page for 503.
    error_503: Option<Page>,
}

/// A page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Page {
    /// Its text; unset: a short page in HTML. Empty: the gateway's own answer.
    body: Option<String>,
    /// Its media type.
    content_type: String,
}

impl Default for Page {
    fn default() -> Self {
        Self { body: None, content_type: "text/html".to_owned() }
    }
}

impl Define for ErrorPage {
    const NAME: &'static str = "error-page";
    const PRIORITY: i32 = 450;
    const PHASES: Phases = Phases::RESPONSE;
    const DOC: &'static str = "\
Answers failures of the gateway and of its plugins with pages of one's own: 404, 500, 502 and 503. Answers of upstreams stay \
as they are. The pages stand in `plugin_metadata`:

```yaml
plugin_metadata:
  - id: error-page
    enable: true
    error_404: {body: '{\"code\": 404}', content_type: application/json}
    error_502: {}
```";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        for (name, page) in typed.pages() {
            if page.is_some_and(|page| !page.content_type.bytes().all(weir_wire::is_field_byte)) {
                let code = Code::PluginRule { text: "expected a media type".into() };
                return Err(vec![Diagnostic::error(metadata.mark_of(name), format!("{name}.content_type"), code)]);
            }
        }
        Ok(())
    }

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(|build| {
            let metadata = build.metadata::<Metadata>()?;
            let mut pages = Vec::new();
            for (name, page) in metadata.pages() {
                let status = name.rsplit('_').next().and_then(|digits| digits.parse().ok()).unwrap_or_default();
                let Some(page) = page.filter(|_| metadata.enable) else { continue };
                let body = page.body.clone().unwrap_or_else(|| default_page(status));
                if !body.is_empty() {
                    let content_type = page.content_type.clone().into_bytes();
                    pages.push(Prepared { status, content_type, body: body.into_bytes() });
                }
            }
            Ok(Pages { pages: pages.into(), content_type: FieldName::constant("Content-Type") })
        }))
    }
}

impl Metadata {
    fn pages(&self) -> [(&'static str, Option<&Page>); 4] {
        [
            ("error_404", self.error_404.as_ref()),
            ("error_500", self.error_500.as_ref()),
            ("error_502", self.error_502.as_ref()),
            ("error_503", self.error_503.as_ref()),
        ]
    }
}

fn default_page(status: u16) -> String {
    let title = format!("{status} {}", weir_wire::status::reason(status));
    format!(
        "<html>\n<head><title>{title}</title></head>\n<body>\n<center><h1>{title}</h1></center>\n</body>\n</html>\n"
    )
}

/// An instance.
#[derive(Debug)]
struct Pages {
    pages: Box<[Prepared]>,
    content_type: FieldName,
}

#[derive(Debug)]
struct Prepared {
    status: u16,
    content_type: Vec<u8>,
    body: Vec<u8>,
}

impl Plugin for Pages {
    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if cx.response().origin == Origin::Upstream {
            return Flow::Continue;
        }
        let status = cx.status();
        if let Some(page) = self.pages.iter().find(|page| page.status == status) {
            cx.set_field(&self.content_type, &page.content_type);
            cx.replace_body(&page.body);
        }
        Flow::Continue
    }
}
