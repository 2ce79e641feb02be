/* What TensorRT's Python bindings need of its libraries and of the driver to be loaded: functions that give nothing. */
#include <string.h>
#define NOTHING(name) void *name(void) { return 0; }
NOTHING(createInferBuilder_INTERNAL)
NOTHING(createInferRuntime_INTERNAL)
NOTHING(createInferRefitter_INTERNAL)
NOTHING(createNvOnnxParser_INTERNAL)
NOTHING(createNvOnnxParserRefitter_INTERNAL)
NOTHING(getNvOnnxParserVersion)
NOTHING(getPluginRegistry)
NOTHING(getBuilderPluginRegistry)
NOTHING(initLibNvInferPlugins)

/* A stream reader asks the driver where it is to read to: always host memory. */
int cuPointerGetAttribute(unsigned *type, int attribute, unsigned long pointer) { return *type = 1, 0; }
int cuMemcpyHtoD_v2(unsigned long to, const void *from, unsigned long size) { return memcpy((void *)to, from, size), 0; }
