//! The compiled kernels that are part of this program.

/// The kernels of `gpu` compiled for one architecture.
#[derive(Clone, Copy, Debug)]
pub struct KernelImage {
    /// `80` for sm_80, `90` for sm_90.
    pub arch: u32,
    /// PTX text, which the driver compiles for this or any newer GPU.
    pub ptx: &'static str,
    /// Machine code, when `ptxas` was there at build time; runs on GPUs of the same major capability only.
    pub cubin: Option<&'static [u8]>,
}

impl KernelImage {
    /// The machine code, if there is any and a GPU of that capability runs it.
    pub fn cubin_for(&self, (major, minor): (u32, u32)) -> Option<&'static [u8]> {
        let fits = self.arch / 10 == major && self.arch % 10 <= minor;
        self.cubin.filter(|_| fits)
    }
}

/// All images of this program, or why there are none.
#[derive(Clone, Copy, Debug)]
pub struct KernelImages {
    /// Images by ascending architecture.
    pub images: &'static [KernelImage],
    /// The compiler they were made with; why there are none where `images` is empty.
    pub note: &'static str,
}

impl KernelImages {
    /// The newest image that a GPU of that capability runs; the reason when there is none.
    pub fn choose(&self, (major, minor): (u32, u32)) -> Result<&'static KernelImage, String> {
        let capability = 10 * major + minor;
        let fitting =
            self.images.iter().filter(|image| image.arch <= capability).max_by_key(|image| image.arch);
        fitting.ok_or_else(|| match self.images {
            [] => self.note.to_owned(),
            images => {
                let have: Vec<String> = images.iter().map(|image| format!("sm_{}", image.arch)).collect();
                format!("it has kernels for {}, the GPU is sm_{capability}", have.join(", "))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static IMAGES: [KernelImage; 2] = [
        KernelImage { arch: 80, ptx: "", cubin: Some(b"80") },
        KernelImage { arch: 90, ptx: "", cubin: None },
    ];
    const BOTH: KernelImages = KernelImages { images: &IMAGES, note: "rustc" };

    #[test]
    fn the_newest_image_the_gpu_runs_is_chosen() {
        let arch = |capability| BOTH.choose(capability).unwrap().arch;
        assert_eq!([arch((8, 0)), arch((8, 9)), arch((9, 0)), arch((12, 0))], [80, 80, 90, 90]);
        assert_eq!(BOTH.choose((7, 5)).unwrap_err(), "it has kernels for sm_80, sm_90, the GPU is sm_75");
        let none = KernelImages { images: &[], note: "no compiler" };
        assert_eq!(none.choose((9, 0)).unwrap_err(), "no compiler");
    }

    #[test]
    fn machine_code_is_for_one_major_capability() {
        let image = &IMAGES[0];
        assert!(image.cubin_for((8, 6)).is_some());
        assert!(image.cubin_for((9, 0)).is_none());
        assert!(IMAGES[1].cubin_for((9, 0)).is_none());
    }
}
