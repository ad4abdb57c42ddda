//! Pictures of what was measured over time, with a dashed line at each checkpoint, as SVG and PNG.

use fermata_testkit::{guests, report::Report};
use plotters::{
    backend::BitMapBackend,
    chart::ChartBuilder,
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea},
    element::{DashedPathElement, PathElement},
    prelude::{DrawingBackend, SVGBackend},
    style::{Color, FontStyle, RGBColor, WHITE, register_font},
};
use std::{error::Error, fs, path::Path};

const SIZE: (u32, u32) = (1400, 600);
/// Points that lie in one of so many columns of the picture become two: the least and the most.
const COLUMNS: usize = 1400;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Okabe and Ito's colours, which the colour-blind tell apart.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0x00, 0x72, 0xb2), RGBColor(0xe6, 0x9f, 0x00), RGBColor(0x00, 0x9e, 0x73), RGBColor(0xd5, 0x5e, 0x00)];
const MARK: RGBColor = RGBColor(0x99, 0x99, 0x99);

type Drawn<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What is to be drawn.
pub struct Picture<'a> {
    /// Above it.
    pub title: &'a str,
    /// What the horizontal axis is.
    pub x: &'a str,
    /// What the vertical one is.
    pub y: &'a str,
    /// The vertical axis begins at zero, so that what is twice as high is twice as much.
    pub from_zero: bool,
    /// Lines by name, each from left to right.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
    /// Where checkpoints were taken.
    pub marks: Vec<f64>,
}

impl Picture<'_> {
    /// Writes it to `target/bench`, and tells the report.
    pub fn save(&self, report: &mut Report, name: &str) {
        let directory = guests::root().join("target/bench");
        let saved =
            fs::create_dir_all(&directory).map_err(Into::into).and_then(|()| self.save_in(&directory, &format!("{}-{name}", report.bench)));
        match saved {
            Ok(()) => report.note(format!("{name}: target/bench/{}-{name}.svg and .png", report.bench)),
            Err(error) => report.note(format!("{name}: there is no picture: {error}")),
        }
    }

    fn save_in(&self, directory: &Path, name: &str) -> Drawn<()> {
        register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font that is built in is damaged")?;
        let mut picture = String::new();
        self.draw(SVGBackend::with_string(&mut picture, SIZE).into_drawing_area())?;
        fs::write(directory.join(format!("{name}.svg")), picture)?;
        let mut pixels = vec![0; SIZE.0 as usize * SIZE.1 as usize * 3];
        self.draw(BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area())?;
        let mut encoder = png::Encoder::new(fs::File::create(directory.join(format!("{name}.png")))?, SIZE.0, SIZE.1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        Ok(writer.finish()?)
    }

    fn draw<B: DrawingBackend>(&self, root: DrawingArea<B, Shift>) -> Drawn<()>
    where
        B::ErrorType: 'static,
    {
        root.fill(&WHITE)?;
        let all = || self.series.iter().flat_map(|(_, points)| points);
        let right = all().map(|point| point.0).fold(1e-9, f64::max);
        let (least, most) = all().fold((f64::MAX, 1e-9), |(least, most), point| (least.min(point.1), f64::max(most, point.1)));
        // Nothing is cut off below but what is far below everything.
        let bottom = if !self.from_zero && least > most / 2.0 { least * 0.99 } else { 0.0 };
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .caption(self.title, (FONT, 20))
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..right, bottom..most * 1.02)?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(GRID).light_line_style(GRID.mix(0.0)).axis_style(INK).label_style((FONT, 14)).axis_desc_style((FONT, 14));
        mesh.x_desc(self.x).y_desc(self.y).draw()?;
        let dashed = |at: &f64| DashedPathElement::new([(*at, bottom), (*at, most * 1.02)], 5, 5, MARK);
        chart.draw_series(self.marks.iter().map(dashed))?;
        for ((name, points), colour) in self.series.iter().zip(COLOURS.into_iter().cycle()) {
            let line = chart.draw_series(std::iter::once(PathElement::new(thinned(points, right), colour.stroke_width(1))))?;
            line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
        }
        if self.series.len() > 1 {
            chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GRID).label_font((FONT, 14)).draw()?;
        }
        root.present()?;
        Ok(())
    }
}

/// The least and the most of each column, in the order in which they come.
fn thinned(points: &[(f64, f64)], right: f64) -> Vec<(f64, f64)> {
    let column = |point: &(f64, f64)| (point.0 / right * COLUMNS as f64) as usize;
    let extremes = points.chunk_by(|a, b| column(a) == column(b)).flat_map(|chunk| {
        let least = (0..chunk.len()).min_by(|a, b| chunk[*a].1.total_cmp(&chunk[*b].1));
        let most = (0..chunk.len()).max_by(|a, b| chunk[*a].1.total_cmp(&chunk[*b].1));
        let mut places: Vec<_> = least.into_iter().chain(most).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| chunk[place])
    });
    extremes.collect()
}
