//! `fermata schema`: what a specification may say.

use super::{Context, Result};
use clap::Args;
use fermata_api::{spec::Spec, values::Problem};

/// Print the JSON Schema of the specification
///
/// Editors use it to check and complete YAML files. Draft 2020-12.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Example:
  fermata schema > fermata.schema.json
  # and as the first line of machine.yaml:
  # yaml-language-server: $schema=fermata.schema.json")]
pub struct Schema {}

impl Schema {
    pub fn run(self, context: &Context) -> Result {
        let schema = Spec::json_schema();
        let text = serde_json::to_string_pretty(&schema).map_err(|error| Problem::new(format!("cannot print the schema: {error}")))?;
        context.out.answer(&schema, |_| text)?;
        Ok(0)
    }
}
