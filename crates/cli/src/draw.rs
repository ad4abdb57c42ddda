//! Draws plots as SVG and PNG: panels below each other, each with its legend on its right.
//!
//! Both come from the same calls, on another backend of the library. The font of the PNG is built in, so that a host without fonts
//! draws the same.

mod panel;

use crate::text;
use fermata_api::values::{Plot, Plots, Problem};
use panel::Panel;
use plotters::{
    backend::BitMapBackend,
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea},
    prelude::{DrawingBackend, SVGBackend},
    style::{FontStyle, RGBColor, TextStyle, WHITE, register_font},
};
use std::error::Error;

/// Pixels of a picture's width at the scale of 1.
const WIDTH: u32 = 1000;
const HEADER: u32 = 46;
const PANEL: u32 = 300;
/// A PNG has so many times as many pixels, so that it is sharp on dense screens and in print.
const PNG_SCALE: u32 = 2;
/// The picture of a line of very many panels would not fit into memory.
const PANELS_MAX: usize = 64;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

type Drawn<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Area<B> = DrawingArea<B, Shift>;

/// An SVG with all panels of these plots, of which each series has a value for each checkpoint of `of`.
pub fn svg(of: &Plots, plots: &[Plot]) -> Result<String, Problem> {
    let mut picture = String::new();
    let size = size(plots, 1)?;
    draw(SVGBackend::with_string(&mut picture, size).into_drawing_area(), of, plots, 1).map_err(cannot)?;
    Ok(picture)
}

/// The same as PNG, twice as large.
pub fn png(of: &Plots, plots: &[Plot]) -> Result<Vec<u8>, Problem> {
    let (width, height) = size(plots, PNG_SCALE)?;
    let mut pixels = vec![0; width as usize * height as usize * 3];
    draw(BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area(), of, plots, PNG_SCALE).map_err(cannot)?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder
        .write_header()
        .and_then(|mut writer| {
            writer.write_image_data(&pixels)?;
            writer.finish()
        })
        .map_err(|error| cannot(error.into()))?;
    Ok(file)
}

fn cannot(error: Box<dyn Error + Send + Sync>) -> Problem {
    Problem::new(format!("cannot draw the picture: {error}"))
}

fn size(plots: &[Plot], scale: u32) -> Result<(u32, u32), Problem> {
    let panels = plots.iter().map(|plot| plot.panels.len()).sum::<usize>();
    if panels > PANELS_MAX {
        return Err(Problem::new(format!("{panels} panels do not fit into one picture; draw one matter at a time with --what")));
    }
    Ok((WIDTH * scale, (HEADER + PANEL * panels as u32) * scale))
}

fn draw<B: DrawingBackend>(root: Area<B>, of: &Plots, plots: &[Plot], scale: u32) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font that is built in is damaged")?;
    root.fill(&WHITE)?;
    let (header, mut rest) = root.split_vertically(HEADER * scale);
    header.draw_text(&title(of), &font(19, scale), (16 * scale as i32, 16 * scale as i32))?;
    let instants: Vec<_> = of.checkpoints.iter().map(|checkpoint| checkpoint.time_virtual_ns).collect();
    for panel in plots.iter().flat_map(|plot| &plot.panels) {
        let (area, below) = rest.split_vertically(PANEL * scale);
        Panel::new(panel, &instants, scale).draw(&area)?;
        rest = below;
    }
    root.present()?;
    Ok(())
}

fn title(of: &Plots) -> String {
    let name = text::harmless(&of.experiment);
    match of.checkpoints.as_slice() {
        [] => name,
        [only] => format!("{name}: checkpoint {}", only.id.short()),
        [first, .., last] => {
            format!("{name}: {} checkpoints, {} to {}", text::count(of.checkpoints.len() as u64), first.id.short(), last.id.short())
        }
    }
}

fn font(pixels: u32, scale: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, pixels * scale)).color(&INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::history;
    use fermata_api::plots::{KINDS, plots};
    use std::collections::BTreeMap;

    fn sample() -> Plots {
        let mut history = history();
        for checkpoint in &mut history {
            checkpoint.pages_by_part = BTreeMap::from([("m1".to_owned(), checkpoint.pages)]);
        }
        plots("tryout", &history, &KINDS)
    }

    #[test]
    fn an_svg_has_titles_units_and_names() {
        let plots = sample();
        let picture = svg(&plots, &plots.plots).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
        for part in ["tryout: 5 checkpoints", "what became of its pages", "MiB", "on a disk", "m1 devices", "virtual time", "10.000s"] {
            assert!(picture.contains(part), "{part}");
        }
    }

    #[test]
    fn a_png_of_each_has_the_size_that_it_should_have() {
        let plots = sample();
        let mut seen = Vec::new();
        for one in plots.plots.chunks(1) {
            let file = png(&plots, one).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut pixels).unwrap();
            assert_eq!((info.width, info.height), size(one, PNG_SCALE).unwrap());
            // It has ink and is no other's; and it is the same each time.
            assert!(pixels.iter().any(|byte| *byte < 0x40) && !seen.contains(&pixels), "{}", one[0].name);
            assert_eq!(png(&plots, one).unwrap(), file);
            seen.push(pixels);
        }
        assert_eq!(seen.len(), KINDS.len());
    }

    #[test]
    fn one_checkpoint_and_none_can_be_drawn() {
        for number in [0, 1] {
            let mut history = history();
            history.truncate(number);
            let plots = plots("tryout", &history, &KINDS);
            assert!(svg(&plots, &plots.plots).is_ok() && png(&plots, &plots.plots[..1]).is_ok());
        }
    }
}
