# Writes the version script of libxpushare.so: cmake -D SOURCES=… -D OUTPUT=… -P exports.cmake
# The functions xp_* are private to one build. Their version is named by the engine's sources, so that a process which has
# loaded the engine of another build is refused by the dynamic loader, which names the file.
set(DIGESTS "")
foreach(SOURCE IN LISTS SOURCES)
  file(SHA256 ${SOURCE} DIGEST)
  string(APPEND DIGESTS ${DIGEST})
endforeach()
string(SHA256 BUILD "${DIGESTS}")
string(SUBSTRING ${BUILD} 0 16 BUILD)
file(WRITE ${OUTPUT} "XPUSHARE_PRIVATE_${BUILD} { global: xp_*; local: *; };\n")
