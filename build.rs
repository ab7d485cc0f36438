//! Compiles `proto/*.proto` with protox, so that no protoc is needed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The package whose messages get a schema.
const COMMANDS: &str = "quorumq.command.v1";

/// Numbers of `FieldDescriptorProto.Type` and `FieldDescriptorProto.Label` (google/protobuf/descriptor.proto).
const UINT64: i32 = 4;
const FIXED64: i32 = 6;
const BOOL: i32 = 8;
const STRING: i32 = 9;
const MESSAGE: i32 = 11;
const BYTES: i32 = 12;
const UINT32: i32 = 13;
const REPEATED: i32 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The fuzz targets are a workspace of their own, two directories below.
    let own = ["proto", "../../proto"].map(Path::new);
    let proto = own.into_iter().find(|directory| directory.is_dir());
    let proto = proto.ok_or("there is no directory proto")?;
    println!("cargo:rerun-if-changed={}", proto.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(proto)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "proto")
    });
    files.sort();
    let descriptors = protox::compile(&files, [proto])?;
    let mut schemas = String::new();
    for file in &descriptors.file {
        if file.package() == COMMANDS {
            for message in &file.message_type {
                let fields = message.field.iter().map(|field| {
                    let name = field.name().to_owned();
                    (
                        name,
                        field.number(),
                        field.r#type.unwrap_or(0),
                        field.label.unwrap_or(0),
                        field.type_name().to_owned(),
                    )
                });
                schemas.push_str(&schema(message.name(), fields)?);
            }
        }
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("command_schema.rs"), schemas)?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}

/// The name of a message's schema.
fn schema_name(message: &str) -> String {
    let mut name = String::new();
    for letter in message.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// The schema of a message (`src/base/wire.rs`) as Rust: name, number, type, label and type's name of each field.
fn schema(
    message: &str,
    fields: impl Iterator<Item = (String, i32, i32, i32, String)>,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    writeln!(
        text,
        "pub static {}: Schema = Schema(&[",
        schema_name(message)
    )?;
    for (name, number, kind, label, type_name) in fields {
        let kind = match kind {
            UINT64 | UINT32 | BOOL => "Varint".to_owned(),
            FIXED64 => "Fixed64".to_owned(),
            STRING => "Text".to_owned(),
            BYTES => "Bytes".to_owned(),
            MESSAGE => {
                let of = type_name.rsplit('.').next().unwrap_or_default();
                format!("Message(&{})", schema_name(of))
            }
            other => return Err(format!("{message}.{name}: type {other} is not supported").into()),
        };
        let repeated = label == REPEATED;
        writeln!(
            text,
            "    Field {{ number: {number}, kind: FieldKind::{kind}, repeated: {repeated} }},"
        )?;
    }
    writeln!(text, "]);")?;
    Ok(text)
}
