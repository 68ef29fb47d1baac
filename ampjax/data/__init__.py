"""Data sets: real file formats and generators, one module for each, all giving `ampjax.ir.instances.Instances`."""
