#version 450
// A Julia set, as words of 8-bit RGBA. glslangValidator -V picture.comp -o picture.spv
layout(local_size_x = 16, local_size_y = 16) in;
layout(std430, binding = 0) writeonly buffer Picture { uint pixels[]; };
layout(push_constant) uniform Size { uint width; uint height; };

void main() {
    uvec2 at = gl_GlobalInvocationID.xy;
    if (at.x >= width || at.y >= height) return;
    vec2 z = 3.0 * (vec2(at) - 0.5 * vec2(width, height)) / float(height);
    float steps = 0.0;
    for (int i = 0; i < 200 && dot(z, z) < 64.0; ++i) {
        z = vec2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + vec2(-0.8, 0.156);
        steps += 1.0;
    }
    float shade = steps - log2(max(log2(max(dot(z, z), 2.0)), 1.0));
    vec3 colour = steps < 200.0 ? 0.5 + 0.5 * cos(vec3(3.0, 3.6, 4.2) + 0.11 * shade) : vec3(0.02);
    pixels[at.y * width + at.x] = packUnorm4x8(vec4(colour, 1.0));
}
